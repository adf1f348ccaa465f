"""Detection of lines from which two texts no longer correspond, and the lexicon that it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, permutations
from pathlib import Path

import pytest

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus, load_pairs
from transformer_mt.errors import UserError
from transformer_mt.tools.quality.checks import check_sample
from transformer_mt.tools.quality.lexicon import Lexicon
from transformer_mt.tools.quality.line_alignment import LineRange, align_lines, find_misaligned_ranges

N = 1800


@pytest.fixture(scope="module")
def text() -> tuple[list[str], list[str]]:
    """Return the sides of the built-in corpus."""
    src, tgt = zip(*load_pairs("train")[:N], strict=True)
    return list(src), list(tgt)


def misaligned(src: list[str], tgt: list[str]) -> list[LineRange]:
    n_pairs = min(len(src), len(tgt))

    def pairs(start: int, end: int) -> Iterable[tuple[str, str]]:
        return zip(src[start:end], tgt[start:end], strict=True)

    ranges = align_lines(pairs, n_pairs)
    assert ranges[0].first == 0 and ranges[-1].end == n_pairs
    assert all(a.end == b.first for a, b in pairwise(ranges))
    return [line_range for line_range in ranges if line_range.offset != 0]


@pytest.mark.parametrize(("first", "n_missing"), [(40, 1), (1200, 15)])
def test_first_misaligned_line_is_found(text: tuple[list[str], list[str]], first: int, n_missing: int) -> None:
    src, tgt = text
    found = misaligned(src[:first] + src[first + n_missing :], tgt)  # the last sources have no target
    assert (found[0].first, found[0].offset) == (first, n_missing)
    found = misaligned(src, tgt[:first] + tgt[first + n_missing :])  # the sources of missing targets have no offset
    assert found[0].first == first
    assert found[-1][1:] == (N - n_missing, -n_missing)


def test_a_shift_is_found_in_the_same_lines_of_any_shards(
    text: tuple[list[str], list[str]], write_shards: Callable[..., ParallelCorpus], tmp_path: Path
) -> None:
    lines = [[*texts[:1000]] for texts in text]
    del lines[1][500:518]
    pairs = [*zip(*lines, strict=False)]
    whole, found = (find_misaligned_ranges(write_shards(pairs, size), tmp_path / str(size)) for size in (1000, 300))
    assert found == whole
    assert found[0].first == 500


def test_range_that_is_shifted_and_corrected_is_found(text: tuple[list[str], list[str]]) -> None:
    src, tgt = text
    (found,) = misaligned(src, [*tgt[:500], "", *tgt[500:1200], *tgt[1200 + 1 :]])
    assert (found.first, found.offset) == (500, 1)
    assert found.end in (1200, 1201)  # source 1200 has lost its target


@pytest.mark.parametrize("n_pairs", [1, 10, 300])
def test_small_corpora_are_accepted(text: tuple[list[str], list[str]], n_pairs: int) -> None:
    assert misaligned(text[0][:n_pairs], text[1][:n_pairs]) == []


@pytest.mark.parametrize("n_pairs", [2, 12, 15, 17, 20, 24, 39])
def test_few_aligned_lines_are_not_called_unaligned(text: tuple[list[str], list[str]], n_pairs: int) -> None:
    for first in range(0, 1500, 50):
        assert misaligned(*(side[first : first + n_pairs] for side in text)) == []


def test_short_lines_of_uniform_length_are_accepted() -> None:
    numbers = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs"}
    rows = [*permutations(numbers, 3)][:50]
    src, tgt = [" ".join(row) for row in rows], [" ".join(numbers[word] for word in row) for row in rows]
    assert misaligned(src, tgt) == []


@pytest.mark.parametrize("prefix", ["", "der "])
@pytest.mark.parametrize("n_pairs", [60, 500])
def test_a_dictionary_is_not_called_unaligned(n_pairs: int, prefix: str) -> None:
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(each) for each in permutations(syllables, 2)]
    assert misaligned(words[:n_pairs], [prefix + word * (i % 3 + 1) for i, word in enumerate(words[-n_pairs:])]) == []


@pytest.mark.parametrize("n_words", [6, 99])
def test_unrelated_lines_are_called_unaligned(n_words: int, text: tuple[list[str], list[str]]) -> None:
    src, tgt = ([" ".join(line.split()[:n_words]) for line in side] for side in text)
    assert misaligned(src[:500], tgt[900:1400]) == [LineRange(0, 500, None)]


def test_empty_and_equal_lines_are_accepted() -> None:
    assert misaligned([""] * 100, [""] * 100) == []


def test_a_large_corpus_is_sampled(text: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.tools.quality.line_alignment.MAX_SCORED", N // 8)
    src, tgt = text
    assert misaligned(src, tgt) == []
    assert misaligned(src, [*tgt[:1234], *tgt[1235:]]) == [(1234, N - 1, -1)]


def test_the_lexicon_tells_translations_from_other_sentences() -> None:
    src, tgt = zip(*load_pairs("train")[:3000], strict=True)
    lexicon = Lexicon.learn([*zip(src[:2000], tgt[:2000], strict=True)])
    held_out = range(2000, 3000)
    assert sum(lexicon.log_likelihood_ratio_of_texts(src[i], tgt[i]) > 0 for i in held_out) > 0.99 * len(held_out)
    assert sum(lexicon.log_likelihood_ratio_of_texts(src[i], tgt[i - 1000]) > 0 for i in held_out) < 0.2 * len(held_out)


@pytest.mark.parametrize("number", ["٢٠١٩", "۲۰۱۹", "२०१९", "২০১৯", "２０１９", "໒໐໑໙", "၂၀၁၉"])
def test_the_lexicon_compares_digits_of_all_scripts(number: str) -> None:
    lexicon = Lexicon.learn([("one two", "eins zwei")] * 50)
    same, other = (lexicon.log_likelihood_ratio_of_texts("in 2019", f"x {text}") for text in (number, "2018"))
    assert same == lexicon.log_likelihood_ratio_of_texts("in 2019", "x 2019") > other


def test_words_that_a_lexicon_did_not_learn_are_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.tools.quality.lexicon.MAX_LINKS", 300)
    lexicon = Lexicon.learn([("one two", "eins zwei"), ("rare", "selten")] * 50)  # learns from every second pair
    known, both = (lexicon.log_likelihood_ratio_of_texts("one", text) for text in ("eins", "eins selten"))
    assert both == known


def test_lexicon_learns_from_fewer_sentences_if_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [("one two", "eins zwei"), ("three", "drei")] * 50
    assert Lexicon.learn(pairs).probabilities[1:].any(1).all()
    monkeypatch.setattr("transformer_mt.tools.quality.lexicon.MAX_LINKS", 300)
    lexicon = Lexicon.learn(pairs)  # every second pair: the words of the others have no translation
    assert lexicon.probabilities[lexicon.src_ids["one"]].any()
    assert not lexicon.probabilities[lexicon.src_ids["three"]].any()


# --- The brief check at the start of a training -----------------------------------------------------------------------

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


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_truncated_cache_entry_is_written_again(size: int, pairs: list[Pair], tmp_path: Path) -> None:
    corpus = load(tmp_path, [(tgt, tgt) if i % 10 == 0 else (src, tgt) for i, (src, tgt) in enumerate(pairs)])
    lines = check_sample(corpus, ("en", "de"), tmp_path)
    (entry,) = tmp_path.glob("check-*.json")
    content = entry.read_bytes()
    entry.write_bytes(content[:size])
    assert check_sample(corpus, ("en", "de"), tmp_path) == lines
    assert entry.read_bytes() == content


def test_swapped_languages_are_refused_each_time(pairs: list[Pair], tmp_path: Path) -> None:
    corpus = load(tmp_path, [(tgt, src) for src, tgt in pairs])
    for _ in range(2):  # the second call finds no cached report
        with pytest.raises(UserError, match=r"^data\.train: (.|\n)*swap src_lang"):
            check_sample(corpus, ("en", "de"), tmp_path)
    assert any("another language" in line for line in check_sample(corpus, ("en", "fr"), tmp_path))
