"""Degenerate output is found in outputs made to be so, not in real sentences, and said once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transformer_mt.data.quickstart import load_pairs
from transformer_mt.evaluation.degenerate import YOUNG, Finding, find, judge
from transformer_mt.evaluation.samples import Sample
from transformer_mt.training.progress import Health

HEALTHY = load_pairs("test")[:100]


def kinds(texts: list[tuple[str, str]], finished: bool = True) -> dict[str, int]:
    """How many of each kind are found."""
    sources, hypotheses = ([text[side] for text in texts] for side in (0, 1))
    finding = find(sources, hypotheses, [finished] * len(texts))
    return {kind: len(places) for kind, places in finding.kinds.items()}


@pytest.mark.parametrize("split", ["test", "combinations"])
def test_real_sentences_are_none(split: str) -> None:
    assert kinds(load_pairs(split)) == {}


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("empty", ""),
        ("empty", "  "),
        ("repetitive", "der der der der der der der"),
        ("repetitive", "Der Hund der der Hund der der der der ."),
        ("repetitive", "der Mann und die Frau " * 3),
        ("repetitive", "Ein Hund " + "mit einem Ball und " * 6),
        ("repetitive", "EEEEEEEEEEEEEEEEEEEE"),
        ("repetitive", "狗在跑" * 6),
    ],
)
def test_an_output_that_is_none(kind: str, output: str) -> None:
    assert kinds([*HEALTHY, ("A dog runs after a man with a ball.", output)]) == {kind: 1}


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("no no no no no no no", "nein nein nein nein nein nein nein"),
        ("Ha ha ha ha ha ha ha!", "Ha, ha, ha, ha, ha, ha, ha!"),
        ("a , b , c , d , e , f", "a , b , c , d , e , f"),
        ("--------------------", "--------------------"),
        ("1000000000000", "1000000000000"),
        ("Row, row, row your boat", "Ru-, ru-, rudre dein Boot"),
        ("Yes.", "Ja."),
        ("Bye-bye!", "Tschü-tschü!"),
        ("狗在跑,猫也在跑。", "狗在跑,猫也在跑。"),
        ("The man and the woman and the child and the dog", "Der Mann und die Frau und das Kind und der Hund"),
        ("", ""),
        (" ", "anything"),
    ],
)
def test_an_output_as_its_source_wants_it(source: str, output: str) -> None:
    assert kinds([(source, output)] * 20) == {}


def test_one_answer_to_everything() -> None:
    """Of different sources, so a corpus that repeats itself is no reason; a short answer suits more sources."""
    same = "Ein Mann in einem roten Hemd steht auf der Straße."
    assert kinds([(source, same) for source, _ in HEALTHY]) == {"the same": 100}
    assert kinds([(source, same if i < 20 else target) for i, (source, target) in enumerate(HEALTHY)]) == {
        "the same": 20
    }
    assert kinds([(source, "Ja." if i < 20 else target) for i, (source, target) in enumerate(HEALTHY)]) == {}
    assert kinds([(source, "Ja.") for source, _ in HEALTHY]) == {"the same": 100}
    assert kinds([HEALTHY[0]] * 50 + HEALTHY[1:50]) == {}
    assert kinds([("Hello!", same), ("Hi!", same)]) == {}


def test_no_end() -> None:
    assert kinds(HEALTHY, finished=False) == {"endless": 100}


def test_each_is_counted_once_and_blank_sources_not_at_all() -> None:
    finding = find(["a b", "c d", "", "e f"], ["", "x " * 30, "y", "g h"], [False, False, False, True])
    assert (finding.total, finding.kinds, finding.share) == (3, {"empty": [0], "repetitive": [1]}, 2 / 3)
    assert str(finding) == "2 of 3 translations (1 empty, 1 repetitive)"
    assert find([], [], []).share == 0


EXAMPLES = {"empty": Sample("a source", "", "a reference")}


def heard(shares: list[int], warm_up: int = 0) -> list[str]:
    """What is said at each of some validations of 100 sentences, so many of them without a translation; the first ones
    are while the learning rate rises."""
    health, said = Health(), list[str]()
    for i, n in enumerate(shares):
        finding = Finding(100, {"empty": list(range(n))} if n else {})
        health, lines = judge(health, finding, EXAMPLES, warming_up=i < warm_up)
        said.append("/".join(line.partition(":")[0].strip().partition("  ")[0] for line in lines))
    return said


FULL = "ALARM/source/model/hint"


def test_an_alarm_begins_and_ends_once() -> None:
    assert heard([0, 3, 50, 60, 8, 4, 0]) == ["", "", FULL, "", "", "degenerate output is over", ""]
    assert heard([0, 50, 0, 50]) == ["", FULL, "degenerate output is over", FULL]


def test_a_new_model_may_fail_for_a_while() -> None:
    assert heard([100, 90, 0, 20]) == ["degenerate output", "", "degenerate output is over", FULL]
    assert heard([100] * (YOUNG + 2)) == ["degenerate output", *[""] * (YOUNG - 2), FULL, "", ""]


def test_a_model_is_new_until_it_has_warmed_up() -> None:
    """However often it is validated until then."""
    quiet = ["degenerate output", *[""] * (2 * YOUNG - 1)]
    assert heard([100] * 2 * YOUNG, warm_up=2 * YOUNG) == quiet
    assert heard([100] * 3 * YOUNG, warm_up=2 * YOUNG) == [*quiet, *[""] * (YOUNG - 2), FULL, ""]
    assert heard([100, 0, 70, 0], warm_up=3) == ["degenerate output", "", "", "degenerate output is over"]
    assert heard([0, 100, 100], warm_up=3) == ["", FULL, ""]  # it was well before


def test_some_bad_sentences_are_no_alarm() -> None:
    assert heard([0, 2, 9, 2]) == ["", "", "", ""]
    assert judge(Health(), Finding(8, {"empty": [0, 1]}), EXAMPLES) == (Health(was_well=True), [])
    assert judge(Health(), Finding(2, {"empty": [0, 1]}), EXAMPLES)[1]


def test_a_run_says_it_in_the_log_and_the_curves(tiny_run: Path) -> None:
    """After twelve steps every output is as long as it may be, or loops."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = (tiny_run.parents[1] / "train.log").read_text(encoding="utf-8")
    said = [line for line in log.splitlines() if "degenerate output" in line]
    assert len(said) == 1
    assert said[0].startswith("step 4  degenerate output: 8 of 8 translations (")
    entries = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["valid/degenerate"] for entry in entries if "valid/loss" in entry] == [1.0] * 3
    board = EventAccumulator(str(tiny_run / "tensorboard")).Reload()
    shown = board.Tensors("degenerate/text_summary")
    assert [event.step for event in shown] == [4, 8, 12]
    assert b"| source | model | reference |" in shown[0].tensor_proto.string_val[0]
