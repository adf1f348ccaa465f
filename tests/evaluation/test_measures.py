"""What `tmt evaluate` reports equals what the `sacrebleu` command says of written files: values, signatures, intervals.

P equals calls of sacremoses and sacreBLEU by hand.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

from transformer_mt.data.quickstart import load_pairs
from transformer_mt.evaluation import measures
from transformer_mt.evaluation.measures import Measure, measure, measure_as_papers
from transformer_mt.evaluation.metrics import Scorer, score

REFERENCES = [
    *(tgt for _, tgt in load_pairs("test")[:40]),
    'Er sagt: „Nein, 3,5 % ...“ – usw. (z. B. am 3. Mai) Kids\' "Food Basket".',
    "",
    "Tom & Jerry's E.ON-Aktie <b>fiel</b>, sank | stieg.",
]
CHINESE = ["他昨天买了两本书。", "天气很好,我们去公园吧!", "这是 GPU 吗?", "她明天写三封信。"]
WITHOUT_ASIAN, ASIAN = (), ("--ter-normalized", "--ter-asian-support")


def damage(text: str, dice: random.Random) -> str:
    """Some characters are lost, and some words change places."""
    words = "".join(letter for letter in text if dice.random() < 0.95).split()
    if len(words) > 2 and dice.random() < 0.3:
        words[0], words[-1] = words[-1], words[0]
    return " ".join(words)


def damaged(references: list[str]) -> list[str]:
    dice = random.Random(1)
    return [damage(reference, dice) for reference in references]


def tokens_of(texts: list[str]) -> list[str]:
    """Cased Moses tokens."""
    tokenizer = MosesTokenizer("de")
    return [" ".join(tokenizer.tokenize(text)) for text in texts]


def by_command(hypotheses: list[str], references: list[str], folder: Path, *options: str) -> list[Measure]:
    """All that someone else computes from the files. Their interval lies around a mean, and is as wide as ours."""
    for name, lines in (("hyp", hypotheses), ("ref", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", folder / "ref", "-i", folder / "hyp", "-w", "8", "--confidence"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return [
        Measure(
            float(one["score"]),
            one["signature"],
            (one["confidence_mean"] - one["confidence_var"], one["confidence_mean"] + one["confidence_var"]),
        )
        for one in (found if isinstance(found, list) else [found])
    ]


def assert_equal(ours: Measure, theirs: Measure) -> None:
    assert ours.signature == theirs.signature
    assert ours.value == pytest.approx(theirs.value, abs=1e-6)
    assert ours.interval and theirs.interval
    (low, high), (their_low, their_high) = ours.interval, theirs.interval
    assert high - low == pytest.approx(their_high - their_low, abs=1e-4)
    assert low <= (their_low + their_high) / 2 <= high


@pytest.mark.parametrize(
    ("standard", "references", "asian"),
    [
        (Scorer("13a", "de"), REFERENCES, WITHOUT_ASIAN),
        (Scorer("intl", "de"), REFERENCES, WITHOUT_ASIAN),
        (Scorer("zh", "zh"), CHINESE, ASIAN),
        (Scorer("char", "ja"), CHINESE, ASIAN),
        (Scorer("char", "de"), REFERENCES, WITHOUT_ASIAN),
        (Scorer("intl", "zh_TW"), CHINESE, ASIAN),
        (Scorer("char", "ko"), REFERENCES, WITHOUT_ASIAN),
    ],
)
def test_every_figure_is_that_of_the_sacrebleu_command(
    standard: Scorer, references: list[str], asian: tuple[str, ...], tmp_path: Path
) -> None:
    """Trap 36."""
    hypotheses = damaged(references)
    found = measure(hypotheses, references, standard)
    assert list(found) == ["BLEU", "chrF", "chrF++", "TER"]
    files = (hypotheses, references, tmp_path)
    theirs = by_command(*files, "-m", "bleu", "chrf", "ter", "-tok", standard.tokenize, *asian)
    theirs.insert(2, *by_command(*files, "-m", "chrf", "--chrf-word-order", "2"))
    for ours, wanted in zip(found.values(), theirs, strict=True):
        assert_equal(ours, wanted)
        assert ours.interval and ours.interval[0] < ours.value < ours.interval[1]


def test_chinese_words_are_characters_to_ter() -> None:
    one_wrong = ["他昨天买了三本书。", *CHINESE[1:]]
    assert 0 < measure(one_wrong, CHINESE, Scorer("zh", "zh"))["TER"].value < 5


@pytest.mark.parametrize("language", ["th", "lo", "km-KH", "my", "bo"])
def test_ter_is_left_out_where_there_are_no_words(language: str) -> None:
    thai = ["ฉันซื้อหนังสือสองเล่ม", "วันนี้อากาศดี"]
    assert list(measure(thai, thai, Scorer("char", language))) == ["BLEU", "chrF", "chrF++"]


def test_the_cheap_figures_are_the_same() -> None:
    standard, hypotheses = Scorer("13a", "de"), damaged(REFERENCES)
    found, cheap = measure(hypotheses, REFERENCES, standard), standard.score(hypotheses, REFERENCES)
    assert (found["BLEU"].value, found["chrF"].value) == (cheap.bleu.value, cheap.chrf.value)
    assert cheap == score(hypotheses, REFERENCES, "13a")


def test_a_perfect_and_a_hopeless_translation() -> None:
    perfect = measure(REFERENCES, REFERENCES, Scorer("13a", "de"))
    hopeless = measure([""] * len(REFERENCES), REFERENCES, Scorer("13a", "de"))
    for name, best, worst in (("BLEU", 100, 0), ("chrF", 100, 0), ("chrF++", 100, 0), ("TER", 0, 100)):
        assert perfect[name].interval == pytest.approx((best, best))
        assert hopeless[name].interval == pytest.approx((worst, worst))
        assert (perfect[name].value, hopeless[name].value) == pytest.approx((best, worst))


def test_an_interval_holds_the_scores_of_the_middle_resamples() -> None:
    """Of TER with one runaway translation: as often as that is drawn. By hand, edits and words are added up."""
    references, n = ["eins zwei drei vier"] * 100, 100
    found = measure(["nie " * 400, *["eins zwei drei fünf"] * 99], references, Scorer("13a", "de"))["TER"]
    dice = np.random.default_rng(5)
    edits = np.array([400.0, *[1.0] * 99])
    drawn = np.sort(edits[dice.integers(n, size=(20_000, n))].sum(1)) / (4 * n) * 100
    assert found.value == pytest.approx(edits.sum() / (4 * n) * 100)
    assert found.interval == pytest.approx((drawn[500], drawn[-501]), abs=1e-3)


def test_resamples_of_which_some_are_hopeless() -> None:
    """sacreBLEU's own mean of Python's and numpy's floats fails."""
    found = measure(["ein Satz", "x", "y", ""], ["ein Satz", "eins", "zwei", ""], Scorer("13a", "de"))
    for name in ("chrF", "chrF++", "TER"):
        low, high = found[name].interval or (0, 0)
        assert low < found[name].value < high


@pytest.mark.parametrize("text", ["", "Satz"])
def test_a_single_pair(text: str) -> None:
    found = measure([text], [text], Scorer("13a", "de"))
    assert found["TER"].interval == (0, 0)
    assert measure_as_papers([text], [text], Scorer("13a", "de")).reference_tokens == len(text.split())


def test_very_many_pairs_have_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them again a thousand times at once would take all memory."""
    whole = measure(CHINESE, CHINESE, Scorer("zh", "zh"))
    monkeypatch.setattr(measures, "MOST_PAIRS", len(CHINESE) - 1)
    found = measure(CHINESE, CHINESE, Scorer("zh", "zh"))
    for name, one in found.items():
        assert (one.value, one.interval) == (whole[name].value, None)
        assert "bs:" in whole[name].signature and "bs:" not in one.signature
    assert found["TER"].line("TER").startswith("TER      0.00  -    ")


def test_a_line_for_the_terminal() -> None:
    assert Measure(31.416, "a|b", (30.0, 32.5)).line("chrF++") == "chrF++  31.42  30.00 to 32.50    a|b"


# --- Moses text -------------------------------------------------------------------------------------------------------


def test_moses_text_is_scored_as_plain_text_without_case(tmp_path: Path) -> None:
    hypotheses, detokenizer = damaged(REFERENCES), MosesDetokenizer("de")
    standard = Scorer("13a", "de", "moses")
    tokens = (tokens_of(hypotheses), tokens_of(REFERENCES))
    plain = tuple([detokenizer.detokenize(text.split()) for text in side] for side in tokens)
    assert plain[1][3] == REFERENCES[3]
    found = measure(*tokens, standard)
    theirs = by_command(plain[0], plain[1], tmp_path, "-m", "bleu", "chrf", "ter", "--lowercase", "--chrf-lowercase")
    for name, wanted in zip(("BLEU", "chrF", "TER"), theirs, strict=True):
        assert_equal(found[name], wanted)
        assert "|case:lc|" in wanted.signature
    assert standard.score(*tokens).bleu.value == found["BLEU"].value
    assert standard.score(*tokens).chrf.value == found["chrF"].value


# --- P ----------------------------------------------------------------------------------------------------------------


def by_hand(texts: list[str], language: str) -> list[str]:
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=True)) for text in texts]


@pytest.mark.parametrize(("code", "language"), [("de", "de"), ("DE_at", "de"), ("fr", "fr"), ("en", "en")])
def test_p_is_what_it_is_by_hand(code: str, language: str, tmp_path: Path) -> None:
    hypotheses = damaged(REFERENCES)
    files = by_hand(hypotheses, language), by_hand(REFERENCES, language)
    bleu = sacrebleu.BLEU(tokenize="none", force=True)
    found = measure_as_papers(hypotheses, REFERENCES, Scorer("13a", code))
    assert found.value == bleu.corpus_score(files[0], [files[1]]).score
    assert found.reference_tokens == sum(len(text.split()) for text in files[1])
    assert_equal(found, *by_command(*files, tmp_path, "-m", "bleu", "-tok", "none", "--force"))


def test_p_of_moses_text_takes_its_tokens_as_they_are() -> None:
    hypotheses, raw = damaged(REFERENCES), Scorer("13a", "de")
    files = (by_hand(hypotheses, "de"), by_hand(REFERENCES, "de"))
    found = measure_as_papers(*files, Scorer("13a", "de", "moses"))
    wanted = measure_as_papers(hypotheses, REFERENCES, raw)
    assert (found.value, found.reference_tokens) == (wanted.value, wanted.reference_tokens)
    upper = measure_as_papers([text.replace("e", "E") for text in files[0]], files[1], Scorer("13a", "de", "moses"))
    assert upper.value == found.value


@pytest.mark.parametrize(
    ("code", "count", "last", "said"),
    [
        ("de", 1000, " e f g", "have 12,103 tokens, as test_2016_flickr.de has in the papers"),
        ("de-DE", 1000, " e f g", "have 12,103 tokens, as test_2016_flickr.de has in the papers"),
        ("de", 1000, "", "have 12,100 tokens; test_2016_flickr.de has 12,103 in the papers: if that is your set, it"),
        ("de", 999, "", "have 12,088 tokens"),
        ("fr", 1000, " e f g", "have 12,103 tokens"),
    ],
)
def test_the_number_of_tokens_tells_the_papers_references(code: str, count: int, last: str, said: str) -> None:
    references = [" ".join("abcdefghijk") + " ."] * count
    references[0] += " x" * 100 + last
    found = measure_as_papers(references, references, Scorer("13a", code))
    assert f"{found.account()}|".find(f"; the references {said}" + ("|" if said.endswith("tokens") else "")) > 0
