"""The brief check at the start of a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus, load_pairs
from transformer_mt.errors import UserError
from transformer_mt.tools.quality.checks import check_sample

Pair = tuple[str, str]


@pytest.fixture
def pairs() -> list[Pair]:
    return load_pairs("train")[:1500]


def load(folder: Path, pairs: Sequence[Pair]) -> ParallelCorpus:
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    source = Source(src=(str(folder / "train.en"),), tgt=(str(folder / "train.de"),))
    return load_corpus(source, "en", "de", folder / "cache")


def test_a_correct_corpus_gives_no_warning(pairs: list[Pair], tmp_path: Path) -> None:
    assert check_sample(load(tmp_path, pairs), ("en", "de"), tmp_path) == []


def test_shifted_lines_give_a_warning(pairs: list[Pair], tmp_path: Path) -> None:
    src, tgt = zip(*pairs, strict=True)
    shifted = [*zip(src, [*tgt[:1000], "Es regnet.", *tgt[1000:-1]], strict=True)]
    (line,) = check_sample(load(tmp_path, shifted), ("en", "de"), tmp_path)
    assert line.startswith("warning: ")
    assert 1000 < int(line.split("train.en:")[1].split(";")[0]) <= 1500


def test_another_language_is_noticed_once_and_then_cached(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = load(tmp_path, [(tgt, tgt) if i % 10 == 0 else (src, tgt) for i, (src, tgt) in enumerate(pairs)])
    lines = check_sample(corpus, ("en", "de"), tmp_path)
    assert any("were not translated, such as" in line for line in lines)
    for path in tmp_path.glob("cache/*/*/*.arrow"):
        path.unlink()  # a second call reads nothing
    assert check_sample(corpus, ("en", "de"), tmp_path) == lines


def test_exchanged_languages_are_refused_each_time(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = load(tmp_path, [(tgt, src) for src, tgt in pairs])
    for _ in range(2):  # the second call finds no cached report
        with pytest.raises(UserError, match=r"source seems to be in de and the target in en(.|\n)*exchange src_lang"):
            check_sample(corpus, ("en", "de"), tmp_path)
    assert any("another language" in line for line in check_sample(corpus, ("en", "fr"), tmp_path))
