"""Runs and translators that exports read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from export_helpers import WORDS, make_tokenizer
from helpers import Tmt, add_noise, assert_succeeded, load_plain

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows import configuration
from transformer_mt.flows.export import export_weights
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder


@pytest.fixture
def run(tiny_run: Path, in_tiny: Path) -> Path:
    """Change to the folder where the tiny run was trained. Tests must not modify it."""
    return tiny_run


@pytest.fixture
def noisy_run(run: Path, tmp_path: Path) -> Path:
    """Add noise to the weights of the run, so that translations differ between sentences."""
    model = load_plain(run, precision="fp32").model
    add_noise(model, 5)
    folder = RunFolder.open(run)
    export_weights(folder, [folder.find_checkpoint("best")], tmp_path / "noisy")
    checkpoints.save(RunFolder(tmp_path / "noisy").find_checkpoint("best"), model, None)
    return tmp_path / "noisy"


@pytest.fixture
def make_translator(make_model: Callable[..., Transformer]) -> Callable[..., Translator]:
    """`make_translator(norm="rmsnorm")`: a model with random noise on its weights, and tokenizers of invented words."""

    def make_translator(
        vocabularies: tuple[int, int] = (WORDS, WORDS),
        source_bos: bool = False,
        tags: tuple[str, ...] = (),
        rough: float = 0.3,
        **settings: Any,
    ) -> Translator:
        src, tgt = map(make_tokenizer, vocabularies)
        pair = TokenizerPair(src, tgt, source_bos).with_tags(tags, is_needed=bool(tags))
        sizes, pads = (pair.src.vocab_size, pair.tgt.vocab_size), (pair.src.pad_id, pair.tgt.pad_id)
        model = make_model(vocab=sizes, pad=pads, rough=rough, **settings)
        config = configuration.load(configuration.find_preset("quickstart")).decoding
        return Translator(TorchEngine([model], pair), pair, config)

    return make_translator


@pytest.fixture(scope="session")
def run_of_marian(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    """An imported `MarianMTModel`. Tests must restore what they change."""
    from importing_helpers import make_marian

    folder = tmp_path_factory.mktemp("marian")
    make_marian(folder / "source")
    assert_succeeded(tmt("import", folder / "source", "--output", folder / "run"))
    return folder / "run"
