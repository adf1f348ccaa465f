"""What several files share: the command line in this process, one tiny run trained through it, and small parts."""

from __future__ import annotations

import gc
import io
import itertools
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from helpers import Tmt, forget_lengths

import transformer_mt.cli.main as cli_main

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores, and tiny models are fastest so
# A shell that starts the tests in the background replaces the handler of SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from transformer_mt.data.corpus import ParallelCorpus
    from transformer_mt.data.encoding import EncodedCorpus
    from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.model.transformer import Transformer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the longest tests, so that no worker still runs them when the others have finished."""
    items.sort(key=lambda item: item.path.name != "test_fake_cuda.py")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and the tests: it looks at all objects after an error of memory."""
    gc.collect()
    gc.freeze()


def written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the data of runs out of the home folder of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@contextmanager
def one_thread() -> Generator[None]:
    """Compute on one CPU thread: with more, a tiny model is slower on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tmt() -> Tmt:
    """`tmt("translate", run, ..., stdin=b"...")`: run the command line in this process, and return its output."""

    def tmt(*arguments: object, stdin: bytes = b"") -> CompletedProcess[str]:
        command = [str(argument) for argument in arguments]
        with (
            io.TextIOWrapper(TemporaryFile(), "utf-8") as stdin_file,
            patch.object(sys, "stdin", stdin_file),
            redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True)) as stdout,
            redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True)) as stderr,
            warnings.catch_warnings(),
            one_thread(),
            pytest.raises(SystemExit) as end,
        ):
            stdin_file.buffer.write(stdin)
            stdin_file.buffer.seek(0)
            cli_main.main(command)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # that of a command ignores a second interrupt
        return CompletedProcess(command, int(end.value.code or 0), written(stdout), written(stderr))

    return tmt


TINY = """
data:
  src_lang: en
  tgt_lang: de
  train: {src: train.en, tgt: train.de}
  validation: {src: valid.en, tgt: valid.de}
  test: {unseen: {src: test.en, tgt: test.de}}
tokenizer: {vocab_size: 340}
batches: {tokens: 256}
model: {d_model: 16, d_ff: 32, n_heads: 2, encoder: {n_layers: 1}, decoder: {n_layers: 1}}
schedule: {warmup_steps: 5}
train: {max_steps: 12, log_every: 3}
validation: {every: 4, metric: loss, probes: 2}
decoding: {engine: torch, max_length_factor: 0, max_length_offset: 5, guard: false}
keep: {last: 2}
device: cpu
threads: 1
"""

NUMBERS = {
    "one": "eins",
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "eight": "acht",
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `tiny.yaml` and the text files that it names, to be used from within."""
    folder = tmp_path_factory.mktemp("tiny")
    pairs = [tuple(map(" ".join, zip(*three, strict=True))) for three in itertools.permutations(NUMBERS.items(), 3)]
    for name, part in {"train": pairs[:50], "valid": pairs[100:108], "test": pairs[200:206]}.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in part)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_run(tiny: Path, tmt: Tmt) -> Path:
    """The run folder of `tmt train --config tiny.yaml`: to be read, never written."""
    before = Path.cwd()
    os.chdir(tiny)
    try:
        done = tmt("train", "--config", "tiny.yaml")
    finally:
        os.chdir(before)
    assert done.returncode == 0, done.stderr
    (tiny / "train.log").write_text(done.stderr, encoding="utf-8")
    forget_lengths(tiny / "runs" / "tiny")
    return tiny / "runs" / "tiny"


@pytest.fixture
def in_tiny(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder of `tiny.yaml`, which tests must not modify. Return its path."""
    monkeypatch.chdir(tiny)
    return tiny


@pytest.fixture
def run_copy(tiny_run: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the tiny run with its texts to a folder that the test may modify, change to it, and return the run."""
    shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy" / tiny_run.relative_to(tiny)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test draws the same random numbers alone and in company."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Transformer]:
    """`make_model(norm_position="post", rough=0.3)`: a tiny model that is not training.

    With `rough`, noise of that size is on every weight, so that biases and gains matter, and outputs differ.
    """
    import torch

    from transformer_mt.model.model_config import ModelConfig
    from transformer_mt.model.transformer import Transformer, VocabularySize

    def make_model(
        *, vocab: tuple[int, int] = (23, 23), pad: tuple[int, int] = (0, 0), rough: float = 0.0, **settings: Any
    ) -> Transformer:
        two = {"n_layers": 2}
        sizes = {"d_model": 16, "d_ff": 32, "n_heads": 4, "encoder": two, "decoder": two}
        config = ModelConfig.model_validate(sizes | settings)
        src, tgt = (VocabularySize(size, pad_id) for size, pad_id in zip(vocab, pad, strict=True))
        torch.manual_seed(1)
        model = Transformer(config, src, tgt).eval()
        for parameter in model.parameters() if rough else ():
            parameter.data += rough * torch.randn_like(parameter)
        for stack, pad_id in ((model.encoder, pad[0]), (model.decoder, pad[1])) if rough else ():
            stack.embedding.tokens.weight.data[pad_id] = 0
        return model

    return make_model


@pytest.fixture(scope="session")
def small_tokenizers() -> TokenizerPair:
    """A joint vocabulary of 420 entries, from quickstart's test pairs."""
    from transformer_mt.data.sources import load_pairs
    from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig
    from transformer_mt.data.tokenizers.trainers import build_tokenizers

    return build_tokenizers(TokenizerConfig(vocab_size=420), load_pairs("test")[:300])


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a temporary folder, and let `datasets` keep its cache there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub-cache")
    return tmp_path


@pytest.fixture
def write_corpus(workdir: Path) -> Callable[..., ParallelCorpus]:
    """`write_corpus(pairs, name="t")`: write t.en and t.de and load them as a corpus."""
    from transformer_mt.data.data_config import Source
    from transformer_mt.data.sources import load_corpus

    def write_corpus(pairs: Sequence[tuple[str, str]], name: str = "t") -> ParallelCorpus:
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            file = workdir / f"{name}.{language}"
            if not file.exists() or file.read_text(encoding="utf-8") != text:  # a new time would change the cache key
                file.write_text(text, encoding="utf-8")
        return load_corpus(Source(src=(f"{name}.en",), tgt=(f"{name}.de",)), "en", "de", Path("cache"))

    return write_corpus


@pytest.fixture(scope="session")
def make_corpus() -> Callable[..., EncodedCorpus]:
    """`make_corpus(src, tgt)`: pairs of ids, held as the product holds them."""
    import numpy as np

    from transformer_mt.data.corpus import ParallelCorpus
    from transformer_mt.data.encoding import EncodedCorpus, EncodedSide, LengthLimitCounts, SideArrays

    untold = ParallelCorpus([], "", "")  # of no text: nobody asks where they were read

    def make_side(sentences: Sequence[Sequence[int]]) -> EncodedSide:
        flat = [i for sentence in sentences for i in sentence]
        return EncodedSide([SideArrays(np.array(flat, np.int32), np.cumsum([0, *map(len, sentences)]))])

    def make_corpus(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> EncodedCorpus:
        rows = np.arange(len(src), dtype=np.int32)
        return EncodedCorpus(make_side(src), make_side(tgt), untold, [rows], LengthLimitCounts(), "")

    return make_corpus


@pytest.fixture(scope="session")
def make_translator(
    make_model: Callable[..., Transformer], make_corpus: Callable[..., EncodedCorpus], small_tokenizers: TokenizerPair
) -> Callable[..., Translator]:
    """`make_translator(**decoding)` has a briefly trained model, so translations differ and some are cut."""
    from transformer_mt.data.batches import BatchStream, StreamPosition
    from transformer_mt.data.sources import load_pairs
    from transformer_mt.decoding.decoding_config import DecodingConfig
    from transformer_mt.decoding.engine import TorchEngine
    from transformer_mt.decoding.hooks import TranslatorHooks
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.markup.stages import make_stages
    from transformer_mt.training.loss import compute_losses
    from transformer_mt.training.optimizers import make_optimizers
    from transformer_mt.training.training_config import LossConfig, OptimizerConfig, inverse_sqrt

    src, tgt = small_tokenizers.src, small_tokenizers.tgt
    one, sizes = {"n_layers": 1}, (src.vocab_size, tgt.vocab_size)
    model = make_model(vocab=sizes, pad=(src.pad_id, tgt.pad_id), d_model=32, d_ff=64, encoder=one, decoder=one)
    (optimizer,) = make_optimizers(OptimizerConfig(), model)
    corpus = make_corpus(*(src.encode(texts) for texts in zip(*load_pairs("test")[:300], strict=True)))
    batches, _ = BatchStream.plain(corpus, small_tokenizers, tokens=400, seed=1).take(StreamPosition(), 200)
    for step, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = inverse_sqrt(step, peak=0.01, warmup_steps=20)
        optimizer.zero_grad()
        (compute_losses(model, batch, LossConfig())["loss"] / batch.n_tgt).backward()
        optimizer.step()
    optimizer.zero_grad()

    def make_translator(**decoding: Any) -> Translator:
        settings = {"max_length_factor": 1, "max_length_offset": 2, **decoding}
        return Translator(
            TorchEngine([model], small_tokenizers),
            small_tokenizers,
            DecodingConfig.model_validate(settings),
            (),
            hooks=TranslatorHooks(make_stages=make_stages),
        )

    return make_translator
