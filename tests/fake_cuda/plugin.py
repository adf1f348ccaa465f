"""Plugin of pytest (`-p fake_cuda.plugin`): tests see the fake CUDA device of the library in FAKE_CUDA_LIBRARY."""

import os
from pathlib import Path

from fake_cuda.device import load

load(Path(os.environ["FAKE_CUDA_LIBRARY"]))
