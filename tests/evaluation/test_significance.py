"""Systems beside each other: significance as the `sacrebleu` command finds it, and buckets counted by hand."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_mt.data.quickstart import load_pairs
from transformer_mt.evaluation import significance
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.significance import (
    Contest,
    by_frequency,
    by_length,
    contests,
    count_words,
    most_different,
)

REFERENCES = [tgt for _, tgt in load_pairs("test")[:60]]
GERMAN = Scorer("13a", "de")


def damaged(rate: float, seed: int) -> list[str]:
    """The references, with so many of their characters lost."""
    dice = random.Random(seed)
    return ["".join(c for c in text if dice.random() > rate) for text in REFERENCES]


A, B, C = damaged(0.04, 1), damaged(0.06, 2), damaged(0.2, 3)


WORDS = {"BLEU": ["bleu"], "chrF": ["chrf"], "chrF++": ["chrf", "--chrf-word-order", "2"], "TER": ["ter"]}


def by_command(name: str, test: str, systems: list[list[str]], folder: Path) -> tuple[list[float], list[float]]:
    """A paired test as someone else makes it from the files: the score of each system, and p of all but the first."""
    for file, lines in (("ref", REFERENCES), *((f"s{i}", texts) for i, texts in enumerate(systems))):
        (folder / file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = [folder / f"s{i}" for i in range(len(systems))]
    command = [sys.executable, "-m", "sacrebleu", folder / "ref", "-i", *names, "-m", *WORDS[name], f"--paired-{test}"]
    said = subprocess.run([*command, "-w", "6", "-f", "text"], capture_output=True, check=True).stdout.decode()
    return [float(x) for x in re.findall(r"│ +(\d+\.\d+) ", said)], [
        float(x) for x in re.findall(r"p = (\S+?)\)", said)
    ]


@pytest.fixture(scope="module")
def tested() -> dict[str, Contest]:
    return contests([A, B, C], REFERENCES, GERMAN)


@pytest.mark.slow
@pytest.mark.parametrize("test", ["bs", "ar"])
def test_significance_is_that_of_the_sacrebleu_command(test: str, tested: dict[str, Contest], tmp_path: Path) -> None:
    for name, found in tested.items():
        scores, p_values = by_command(name, test, [A, B, C], tmp_path)
        first, *others = found.standings
        assert [one.score for one in found.standings] == pytest.approx(scores, abs=1e-5)
        assert [one.difference for one in others] == pytest.approx(
            [score - scores[0] for score in scores[1:]], abs=2e-5
        )
        assert (first.difference, first.p_bootstrap, first.p_randomisation) == (None, None, None)
        ours = [one.p_bootstrap if test == "bs" else one.p_randomisation for one in others]
        if test == "bs":
            assert ours == pytest.approx(p_values, abs=6e-5)  # the command rounds them
        else:  # and leaves out the shuffles that make the same difference
            assert all(p - 6e-5 < (one or 0) < p + 0.02 for one, p in zip(ours, p_values, strict=True))
        assert "|bs:1000|ar:10000|seed:12345|" in found.signature


def test_there_is_something_to_find(tested: dict[str, Contest]) -> None:
    close, far = tested["chrF"].standings[1:]
    assert far.p_bootstrap is not None and close.p_bootstrap is not None
    assert far.p_bootstrap < 0.002 < close.p_bootstrap < 0.5


def test_the_same_translations_differ_by_chance() -> None:
    """sacreBLEU itself answers 0.001 and 0.0001."""
    for found in contests([A, list(A)], REFERENCES, GERMAN).values():
        one = found.standings[1]
        assert (one.difference, one.p_bootstrap, one.p_randomisation) == (0, 1, 1)
    assert most_different([A, list(A)], None, REFERENCES, GERMAN, 5) == []


def test_a_single_pair_has_no_bootstrap() -> None:
    """It is drawn again as it is; sacreBLEU answers 0.001."""
    reference = "the cat sat on the mat today"
    one = contests([["the cat sat on a mat today"], [reference]], [reference], GERMAN)["BLEU"]
    assert one.standings[1].difference
    assert one.standings[1].p_bootstrap is None and one.standings[1].p_randomisation == 1


@pytest.mark.parametrize(("differing", "least"), [(1, 1.0), (2, 0.5), (5, 0.0625)])
def test_few_sentences_do_not_tell_systems_apart(differing: int, least: float) -> None:
    """Of the shuffles of k sentences, two leave as large a difference as there is. sacreBLEU answers 0.0001."""
    better = [*REFERENCES[:differing], *A[differing:]]
    worse = [*("x" for _ in range(differing)), *A[differing:]]
    for found in contests([worse, better], REFERENCES, GERMAN).values():
        p = found.standings[1].p_randomisation
        assert p is not None and least - 0.02 < p < least + 0.05


def test_a_shuffle_that_changes_nothing_makes_as_large_a_difference() -> None:
    """TER does not see case: of twenty sentences that differ, one matters to it, wherever it stands."""
    ours = [text[:1].swapcase() + text[1:] if i < 20 else text for i, text in enumerate(REFERENCES)]
    found = contests([[*ours[:19], "x", *ours[20:]], REFERENCES], REFERENCES, GERMAN)
    p = {name: one.standings[1].p_randomisation for name, one in found.items()}
    assert p["TER"] == 1 and (p["BLEU"] or 0) < 0.001


def test_shuffles_that_make_as_large_a_difference_are_counted() -> None:
    """One word each is wrong in ten sentences of one system and in twenty of the other: a coin is thrown for each."""
    references = ["one two three four"] * 30
    systems = [["one two three x"] * 10 + references[:20], references[:10] + ["one two three x"] * 20]
    p = contests(systems, references, GERMAN)["TER"].standings[1].p_randomisation
    exact = sum(math.comb(30, k) for k in range(31) if abs(2 * k - 30) >= 10) / 2**30
    assert p == pytest.approx(exact, abs=0.012), "four standard errors"


def test_too_many_pairs_have_scores_alone(tested: dict[str, Contest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "MOST_PAIRS", len(REFERENCES) - 1)
    for name, found in contests([A, B, C], REFERENCES, GERMAN).items():
        for one, other in zip(found.standings, tested[name].standings, strict=True):
            assert (one.score, one.difference) == (other.score, other.difference)
            assert (one.p_bootstrap, one.p_randomisation) == (None, None)
        assert "seed" not in found.signature


def test_moses_text_is_put_together_first() -> None:
    moses = Scorer("13a", "en", "moses")
    found = contests([["Is this it ?"], ["is this"]], ["is this it ?"], moses)
    assert found["BLEU"].standings[0].score == pytest.approx(100)
    assert "case:lc" in found["BLEU"].signature


# --- where ------------------------------------------------------------------------------------------------------------


def test_the_sentences_that_differ_most() -> None:
    references, sources = ["ein Hund", "eine Katze", "zwei Hunde", "drei"], ["a", "b", "c", "d"]
    systems = [["ein Hund", "eine", "x", "drei"], ["ein Hund", "eine Katze", "zwei Hunde", "dre"]]
    found = most_different(systems, sources, references, GERMAN, 5)
    assert [one.line for one in found] == [3, 2, 4]
    assert (found[0].source, found[0].reference, found[0].translations) == ("c", "zwei Hunde", ["x", "zwei Hunde"])
    assert found[0].chrf == pytest.approx([0, 100])
    chrf = CHRF()
    assert found[1].chrf == [chrf.sentence_score(text, ["eine Katze"]).score for text in ("eine", "eine Katze")]
    assert [one.line for one in most_different(systems, None, references, GERMAN, 1)] == [3]
    assert most_different(systems, None, references, GERMAN, 0) == []


def test_scores_by_length() -> None:
    """The full stop is a word: the first reference has 10, the second 11."""
    references = [" ".join(["wort"] * 9) + ".", " ".join(["wort"] * 10) + ".", " ".join(["so"] * 61), ""]
    systems = [[*references], ["wort wort", "wort wort wort wort wort", "", "x"]]
    found = by_length(systems, references, GERMAN)
    assert [(one.words, one.pairs) for one in found] == [("0-10", 2), ("11-20", 1), (">60", 1)]
    assert [one.bleu[0] for one in found] == pytest.approx([100] * 3)
    wanted = BLEU().corpus_score([systems[1][0], "x"], [[references[0], ""]]).score
    assert found[0].bleu[1] == pytest.approx(wanted)
    assert found[1].chrf == pytest.approx([100, CHRF().corpus_score([systems[1][1]], [[references[1]]]).score])
    assert (found[2].bleu[1], found[2].chrf[1]) == (0, 0)


def test_f1_by_frequency() -> None:
    """By hand. In training: a 101 times, b 3, c once, d never."""
    training = [["a " * 100], ["a b b", "b c", "e e e e e e"]]
    references = ["a b c d", "a a b", "d"]
    one = ["a b c d", "a b b", "d"]  # a 2 of 2 and 3, b 2 of 3 and 2, c 1 of 1, d 2 of 2
    other = ["b a", "a a a", "e c"]  # a 3 of 4 and 3, b 1 of 1 and 2, c 0 of 1 and 1, d 0 of 0 and 2
    found = by_frequency([one, other], references, iter(training), GERMAN)
    assert [(bucket.frequency, bucket.words) for bucket in found] == [("0", 2), ("1", 1), ("2-5", 2), (">100", 3)]
    wanted = [[100, 0], [100, 0], [100 * 4 / 5, 100 * 2 / 3], [100 * 4 / 5, 100 * 6 / 7]]
    for bucket, f1 in zip(found, wanted, strict=True):
        assert bucket.f1 == pytest.approx(f1)


def test_words_are_those_of_bleu() -> None:
    counted = count_words([["Wer? Er, Wer"]], {"Wer", "?", "wer"}, GERMAN)
    assert counted == {"Wer": 2, "?": 1}
    assert count_words([["他买了书。"]], {"书", "他"}, Scorer("zh", "zh")) == {"书": 1, "他": 1}
