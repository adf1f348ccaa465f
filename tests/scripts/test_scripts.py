"""The FLOPs of a training step are those that PyTorch counts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_baseline
import docs_drawings
import docs_figures
import docs_session
import paper_bleu
import pytest
import sacrebleu
import torch
import walk
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from torch.utils.flop_counter import FlopCounterMode

from transformer_mt.data.sources import load_pairs
from transformer_mt.model.transformer import Transformer

VOCAB, S, T = 23, 7, 5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_kv_heads": 1, "activation": "swiglu"},
        {"encoder": {"n_layers": 3, "d_ff": 48}, "decoder": {"n_layers": 1}},
    ],
)
def test_model_flops_equal_those_that_torch_counts(
    settings: dict[str, Any], make_model: Callable[..., Transformer]
) -> None:
    """Without padding. PyTorch also counts masked scores, which `model_flops` leaves out."""
    model = make_model(vocab=(VOCAB, VOCAB), dropout={"attention": 0.1}, **settings).train()
    src, tgt = torch.full((2, S), 3), torch.full((2, T), 4)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(src, tgt)).sum().backward()
    hidden = 6 * 2 * model.config.decoder.n_layers * model.config.d_model * T * (T - 1)
    counted = bench_baseline.model_flops(model.config, VOCAB, [S, S], [T, T])
    assert counter.get_total_flops() == counted + hidden


# --- CONTRIBUTING.md lists the modules that training and translating really execute -----------------------------------


@pytest.mark.slow
def test_the_tables_of_the_page_list_the_executed_modules() -> None:
    page = walk.PAGE.read_text(encoding="utf-8")
    for name, expected in walk.describe_walks(walk.walk()).items():
        assert walk.listed_modules(page, name) == expected, "run scripts/walk.py --write"


# --- BLEU as in the papers equals explicit calls of sacremoses and sacreBLEU ------------------------------------------

REFERENCES = [
    *(tgt for _, tgt in load_pairs("test")[:40]),
    'Er sagt: „Nein, 3,5 % ...“ – usw. (z. B. am 3. Mai) Kids\' "Food Basket".',
    "",
    "Tom & Jerry's E.ON-Aktie <b>fiel</b>, sank | stieg.",
]
HYPOTHESES = [text.replace("ei", "ie") for text in REFERENCES]


def preprocess_explicitly(texts: list[str], language: str) -> list[str]:
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=True)) for text in texts]


@pytest.mark.parametrize("language", ["de", "fr", "en"])
def test_raw_text_and_moses_tokens_have_the_same_score(language: str) -> None:
    hypotheses, references = (preprocess_explicitly(texts, language) for texts in (HYPOTHESES, REFERENCES))
    expected = sacrebleu.BLEU(tokenize="none").corpus_score(hypotheses, [references]).score
    score = paper_bleu.paper_bleu(HYPOTHESES, REFERENCES, language)
    assert score.value == pytest.approx(expected)
    assert score.reference_tokens == sum(len(text.split()) for text in references)
    for tokens in (hypotheses, [text.replace("e", "E") for text in hypotheses]):
        assert paper_bleu.paper_bleu(tokens, references, language, is_moses=True) == score


# --- scripts/docs_figures.py draws every figure of a run, and docs_session.py shows what a terminal shows -------------

EXAMPLES = docs_figures.Examples("one two three", ("one two", "eins zwei"), ("six", "sechs"), ["one", "eins", "two"])


@pytest.mark.slow
def test_all_figures_are_drawn_from_a_run(tiny_run: Path, in_tiny: Path, tmp_path: Path) -> None:
    drawn = {path.name for path in docs_figures.draw_all(tiny_run, tmp_path, EXAMPLES)}
    committed = {path.name for path in (Path(__file__).resolve().parents[2] / "docs" / "figures").iterdir()}
    assert drawn | {"training.svg"} == committed


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "first.svg", tmp_path / "second.svg"]
    for path in paths:
        docs_figures.write_svg(docs_drawings.draw_grouped_heads(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("10 %\r20 %\r\ndone", ["20 %", "done"]),
        ("bar\r\n10 %\x1b[1A\r\x1b[2Kstep 1\r\n\x1b[2K20 %", ["step 1", "20 %"]),
    ],
    ids=["overwritten", "moved up"],
)
def test_recorded_output_becomes_the_lines_of_a_screen(output: str, lines: list[str]) -> None:
    assert docs_session.screen_lines(output) == lines


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_session_runs_in_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert "usage: tmt" in docs_session.run_in_terminal(["--help"])
    with pytest.raises(SystemExit, match="tmt translate failed with status 2"):
        docs_session.run_in_terminal(["translate"])
