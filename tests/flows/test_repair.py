"""`tmt repair` pairs lines again, cleans text, leaves out bad pairs, and lists what it did."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data import sources as quickstart
from transformer_mt.data.sources import TrainSource
from transformer_mt.errors import UserError
from transformer_mt.tools.quality.high_loss_pairs import PairLoss
from transformer_mt.tools.quality.repair import RepairReport, repair_corpus

Pair = tuple[str, str]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [*dict.fromkeys(quickstart.load_pairs("train"))][:2000]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(src: Sequence[str], tgt: Sequence[str]) -> Config:
    """Write the training text, and return a configuration that names it."""
    for language, lines in (("en", src), ("de", tgt)):
        Path(f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    overrides = ("name=mine", "data.train={src: train.en, tgt: train.de}", "data.test={}", "data.cache_dir=cache")
    return configuration.load(configuration.find_builtin_config("quickstart"), overrides)


def read(folder: str) -> list[Pair]:
    sides = ((Path(folder) / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de"))
    return list(zip(*sides, strict=True))


def read_changes() -> list[dict[str, str]]:
    head, *rows = [line.split("\t") for line in Path("new/changes.tsv").read_text(encoding="utf-8").splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_correct_corpus_is_not_changed(pairs: list[Pair]) -> None:
    report = repair_corpus(write(*zip(*pairs, strict=True)), Path("new"), None)
    dropped = [row for row in read_changes() if row["reason"].startswith("unrelated")]
    assert len(dropped) <= 0.005 * len(pairs) and len(read_changes()) == len(dropped)
    assert report.totals.n_pairs == len(pairs) - len(dropped)
    assert {*read("new")} <= {*pairs}


def test_shifted_lines_are_paired_again(pairs: list[Pair]) -> None:
    """A foreign line at target line 501, and a missing target line 1,500."""
    src, tgt = zip(*pairs, strict=True)
    repair_corpus(write(src, [*tgt[:500], "Es regnet.", *tgt[500:1499], *tgt[1500:]]), Path("new"), None)
    left = read("new")
    assert {*left} <= {*pairs} and len(left) > len(pairs) - 12
    cut = {(row["src_line"], row["tgt_line"]) for row in read_changes() if row["action"] == "cut"}
    assert ("", "train.de:501") in cut
    shifted = [row for row in read_changes() if row["action"] == "shift"]
    assert 990 < len(shifted) <= 1000
    assert (shifted[9]["src_line"], shifted[9]["tgt_line"]) == ("train.en:510", "train.de:511")


@pytest.mark.parametrize("missing", ["source", "target"])
def test_texts_of_different_length_are_repaired(missing: str, pairs: list[Pair]) -> None:
    src, tgt = map(list, zip(*pairs, strict=True))
    del (src if missing == "source" else tgt)[700]
    report = repair_corpus(write(src, tgt), Path("new"), None)
    assert {*report.totals.n_lines} == {1999, 2000}
    left = read("new")
    assert {*left} <= {*pairs} and pairs[-1] in left and len(left) > len(pairs) - 12


def test_bad_pairs_are_dropped_and_damaged_text_is_cleaned(pairs: list[Pair]) -> None:
    src, tgt = map(list, zip(*pairs, strict=True))
    longest = max(range(len(src)), key=lambda row: len(src[row]))
    tgt[longest] = src[longest]
    umlaut = next(row for row, line in enumerate(tgt) if "ä" in line)
    tgt[umlaut] = tgt[umlaut].encode().decode("cp1252")
    src[30] = f"{src[30]}\u200b"
    report = repair_corpus(write(src, tgt), Path("new"), None)
    assert report.totals.changes["drop", "language"] + report.totals.changes["drop", "copy"] == 1
    cleaned = {row["src_line"]: row for row in read_changes() if row["action"] == "clean"}
    assert cleaned[f"train.en:{umlaut + 1}"]["new_tgt"] == pairs[umlaut][1]
    assert cleaned["train.en:31"]["new_src"] == pairs[30][0]
    assert pairs[30] in read("new") and (src[longest], tgt[longest]) not in read("new")


def test_moderate_excess_loss_needs_a_second_reason(pairs: list[Pair]) -> None:
    """A pair is dropped for a high excess loss, or for a moderate one with a short or an unrelated target."""
    src, tgt = map(list, zip(*pairs, strict=True))
    longest = sorted(range(100, 2000), key=lambda row: -len(tgt[row]))[:4]
    shortened = {row: tgt[row][: len(tgt[row]) // 3] for row in longest[:2]}
    for row, text in {**shortened, longest[2]: tgt[longest[3]], longest[3]: tgt[longest[2]]}.items():
        tgt[row] = text
    excess = {77: 4.0, longest[0]: 0.5, longest[1]: 0.1, longest[2]: 0.5, longest[3]: 0.1}
    losses = [PairLoss("train.en", row + 1, src[row], tgt[row], 5.0, excess.get(row, 0.0)) for row in range(len(src))]
    repair_corpus(write(src, tgt), Path("new"), losses)
    dropped = {int(row["src_line"].split(":")[1]) - 1: f"{row['reason']}: {row['detail']}" for row in read_changes()}
    assert {*dropped} == {77, longest[0], longest[2]}
    assert dropped[77] == "ledger: excess loss 4.0"
    assert "length ratio" in dropped[longest[0]] and "log-likelihood ratio" in dropped[longest[2]]


def test_losses_are_found_however_the_file_is_named(pairs: list[Pair]) -> None:
    write(*zip(*pairs, strict=True))
    overrides = ("data.train={src: ./train.en, tgt: ./train.de}", "data.test={}", "data.cache_dir=cache")
    config = configuration.load(configuration.find_builtin_config("quickstart"), overrides)
    losses = [PairLoss("train.en", row + 1, *pair, 5.0, 4.0 if row == 77 else 0.0) for row, pair in enumerate(pairs)]
    assert repair_corpus(config, Path("new"), losses).totals.changes["drop", "ledger"] == 1
    others = [loss._replace(file="other.en") for loss in losses]
    with pytest.raises(
        UserError, match=r"no loss of the lines of data\.train: it is of other files \(such as other\.en:1\)"
    ):
        repair_corpus(config, Path("newer"), others)
    assert not Path("newer").exists()


def test_losses_are_found_if_the_sides_are_exchanged(pairs: list[Pair]) -> None:
    write(*zip(*pairs, strict=True))
    overrides = ("data.train={src: train.en, tgt: train.de, reverse: true}", "data.test={}", "data.cache_dir=cache")
    config = configuration.load(configuration.find_builtin_config("quickstart"), overrides)
    losses = [PairLoss("train.de", row + 1, *pair, 5.0, 4.0 if row == 77 else 0.0) for row, pair in enumerate(pairs)]
    repair_corpus(config, Path("new"), losses)
    dropped = [row for row in read_changes() if row["reason"] == "ledger"]
    assert [(row["src_line"], row["tgt_line"]) for row in dropped] == [("train.de:78", "train.en:78")]


def test_losses_of_pairs_that_were_not_seen_yet_decide_nothing(pairs: list[Pair]) -> None:
    config = write(*zip(*pairs, strict=True))
    losses = [PairLoss("train.en", row + 1, *pair, math.nan, math.nan) for row, pair in enumerate(pairs)]
    repair_corpus(config, Path("new"), losses)
    with_losses = read("new")
    shutil.rmtree("new")
    repair_corpus(config, Path("new"), None)
    assert with_losses == read("new")


def test_sides_of_one_language_are_different_files(pairs: list[Pair]) -> None:
    sources = [src for src, _ in pairs[:99]]
    targets = [src if i % 3 == 0 else f"I know that {src} It is true." for i, src in enumerate(sources)]
    for name, lines in (("a.en", targets), ("b.en", sources)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    text = "data: {src_lang: en, tgt_lang: en, train: {src: a.en, tgt: b.en, reverse: true, tag: x}, cache_dir: cache}"
    Path("same.yaml").write_text(text, encoding="utf-8")
    report = repair_corpus(configuration.load(Path("same.yaml")), Path("new"), None)
    (train,) = configuration.load(Path(report.config_path)).data.train_sources
    assert (train.src, train.tgt, train.tag) == (("new/train.src",), ("new/train.tgt",), "x")
    assert {row["src_line"].split(":")[0] for row in read_changes()} == {"b.en"}


def test_each_source_is_repaired_into_its_own_files(pairs: list[Pair], tmt: Tmt) -> None:
    """The files of `back` are shifted, and those of `web` have an empty line. Both have a line 41 with a high loss."""
    en, de = map(list, zip(*pairs, strict=True))
    write(["", *en[1:500]], de[:500])
    Path("back.en").write_text("".join(f"{line}\n" for line in en[500:1500]), encoding="utf-8")
    Path("back.de").write_text("".join(f"{line}\n" for line in [*de[500:900], *de[901:1500]]), encoding="utf-8")
    train = """
    - {name: web, src: train.en, tgt: train.de, weight: 3, tag: 2de}
    - {name: back, src: back.en, tgt: back.de, reverse: true, weight: 1, tag: 2en}"""
    text = f"data:\n  src_lang: en\n  tgt_lang: de\n  cache_dir: cache\n  train:{train}\n"
    Path("two.yaml").write_text(text, encoding="utf-8")
    losses = [
        PairLoss(file, row + 1, "", "", 5.0, 4.0 if (name, row) in (("web", 40), ("back", 50)) else 0.0, name)
        for name, file, n in (("web", "train.en", 500), ("back", "back.de", 1000))
        for row in range(n)
    ]
    report = repair_corpus(configuration.load(Path("two.yaml")), Path("new"), losses)
    web, back = report.sources["web"], report.sources["back"]
    assert web.n_lines == (500, 500) and back.n_lines == (999, 1000)
    assert web.changes["drop", "length"] == web.changes["drop", "ledger"] == back.changes["drop", "ledger"] == 1
    assert back.changes["shift", "misaligned"] > 590
    dropped = {(row["source"], row["src_line"]) for row in read_changes() if row["reason"] == "ledger"}
    assert dropped == {("web", "train.en:41"), ("back", "back.de:51")}
    new_web, new_back = configuration.load(Path(report.config_path)).data.train_sources
    assert isinstance(new_web, TrainSource) and isinstance(new_back, TrainSource)
    assert [(source.name, source.weight, source.tag) for source in (new_web, new_back)] == [
        ("web", 3, "2de"),
        ("back", 1, "2en"),
    ]
    assert new_back.languages("en", "de") == ("de", "en") and not new_back.reverse
    for source, expected, counts in ((new_web, pairs[:500], web), (new_back, pairs[500:1500], back)):
        (src,), (tgt,) = (
            (Path(file).read_text(encoding="utf-8").splitlines() for file in side) for side in (source.src, source.tgt)
        )
        left = list(zip(src, tgt, strict=True)) if source is new_web else list(zip(tgt, src, strict=True))
        assert {*left} <= {*expected} and len(left) == counts.n_pairs > 0.95 * len(expected)
    assert RepairReport.load(Path("new")) == report
    printed = assert_succeeded(tmt("repair", "two.yaml", "--output", "newer"))
    assert "\nback: " in printed and "1,000 target lines\n" in printed.replace("999 source and ", "")


def test_a_filter_with_a_score_for_each_line_is_refused(pairs: list[Pair]) -> None:
    config = write(*zip(*pairs[:99], strict=True))
    filters = (
        "data: {src_lang: en, tgt_lang: de, train: {src: train.en, tgt: train.de}, filters: [score: {file: f, min: 0}]}"
    )
    Path("scored.yaml").write_text(filters, encoding="utf-8")
    with pytest.raises(UserError, match=r"scored\.yaml:1: data\.filters\.0\.score: has one score per line"):
        repair_corpus(configuration.load(Path("scored.yaml")), Path("new"), None)
    assert config and not Path("new").exists()


def test_the_new_configuration_trains_on_the_repaired_text(pairs: list[Pair]) -> None:
    config = write(*zip(*pairs, strict=True))
    report = repair_corpus(config, Path("new"), None)
    new = configuration.load(Path(report.config_path))
    (train,) = new.data.train_sources
    assert (new.name, train.src, train.tgt) == ("mine-repaired", ("new/train.en",), ("new/train.de",))
    assert new.model_copy(update={"name": config.name, "data": config.data}) == config
    assert sorted(path.name for path in Path("new").iterdir()) == [
        "changes.tsv", "mine-repaired.yaml", "repair.json", "train.de", "train.en"
    ]  # fmt: skip


def test_a_corpus_that_is_not_text_files_is_repaired() -> None:
    train = "data.train={builtin: quickstart, split: validation}"
    overrides = (train, "data.validation=null", "data.cache_dir=cache", "data.test={}")
    config = configuration.load(configuration.find_builtin_config("quickstart"), overrides)
    report = repair_corpus(config, Path("new"), None)
    assert report.totals.n_pairs > 0.9 * len(quickstart.load_pairs("validation"))


def test_wrong_input_is_refused_and_nothing_is_written(pairs: list[Pair]) -> None:
    config = write([src for src, _ in pairs], [])
    with pytest.raises(UserError, match=r"train\.de: holds no lines"):
        repair_corpus(config, Path("new"), None)
    with pytest.raises(UserError, match=r"keep only 0 pairs of 3 lines \(removed: length 3\)"):
        repair_corpus(write([""] * 3, [""] * 3), Path("new"), None)
    assert not [path for path in Path().iterdir() if path.name.startswith(("new", ".new"))]
    Path("new").mkdir()
    with pytest.raises(UserError, match="new: exists already; remove it, or pass another --output"):
        repair_corpus(config, Path("new"), None)


def test_a_repair_that_would_remove_most_pairs_is_refused(pairs: list[Pair]) -> None:
    src, tgt = zip(*pairs[:50], strict=True)
    with pytest.raises(UserError, match=r"of 50 lines \(removed: language .*nothing was written.\n.*exchange src_lang"):
        repair_corpus(write(tgt, src), Path("new"), None)
    targets = ["eins zwei drei vier"] * 30
    with pytest.raises(UserError, match=r"keep only 14 pairs of 30 lines \(removed: length 16\).*\n.*data.filters"):
        repair_corpus(write(["one two three four"] * 14 + [""] * 16, targets), Path("new"), None)
    assert not Path("new").exists()
    kept = repair_corpus(write(["one two three four"] * 15 + [""] * 15, targets), Path("new"), None)
    assert kept.totals.n_pairs == 15


def test_command_prints_what_was_changed(tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    write(["one two three four"] * 30 + [""], ["eins zwei drei vier"] * 31)
    Path("mine.yaml").write_text(
        "data: {src_lang: en, tgt_lang: de, train: {src: train.en, tgt: train.de}, cache_dir: cache}", encoding="utf-8"
    )
    printed = assert_succeeded(tmt("repair", "mine.yaml", "--output", "new"))
    assert "30 pairs of 31 lines are in new" in printed
    assert "tmt train --config new/mine-repaired.yaml" in printed
    report = json.loads(assert_succeeded(tmt("repair", "mine.yaml", "--output", "other", "--json")))
    assert report["counts"] == [{"action": "drop", "reason": "length", "count": 1}]
    assert report["used_ledger"] is False and "ledger" not in printed
    assert_user_error(tmt("repair", "mine.yaml", "--train", "--output", "x"), "set data.test or data.validation")


def test_files_without_settings_are_next_given_to_init(tiny: Path, tmt: Tmt) -> None:
    write(["one two three four"] * 30, ["eins zwei drei vier"] * 31)
    Path("pairs.yaml").write_text(
        "data: {src_lang: en, tgt_lang: de, train: {src: train.en, tgt: train.de}}", encoding="utf-8"
    )
    printed = assert_succeeded(tmt("repair", "pairs.yaml", "--output", "new"))
    assert "next: tmt init new/train.en new/train.de" in printed
    printed = assert_succeeded(tmt("repair", "pairs.yaml", "data.filters=[copy]", "--output", "filtered"))
    assert "next: tmt train --config filtered/pairs-repaired.yaml" in printed


@pytest.mark.slow
def test_both_models_are_trained_and_compared(tiny: Path, run_copy: Path, tmt: Tmt) -> None:
    shutil.rmtree("runs")  # its run has no ledger
    printed = assert_succeeded(tmt("repair", "tiny.yaml", "--train", "--output", "new"))
    assert "unseen: scores before and after the repair" in printed
    assert "are in new (with the training ledger)" in printed
    shutil.rmtree("runs/tiny-repaired")
    assert assert_succeeded(tmt("repair", "tiny.yaml", "--train", "--output", "new")) == printed
    assert_user_error(tmt("repair", "tiny.yaml", "--train", "--output", "runs"), "runs: exists already")
    changed = tmt("repair", "tiny.yaml", "seed=5", "--train", "--output", "new")
    assert_user_error(changed, "new: was made by --train, and this has changed since: seed;")
    text = Path("train.en").read_text(encoding="utf-8")
    Path("train.en").write_text(text.replace("one three", "one seven"), encoding="utf-8")
    changed = tmt("repair", "tiny.yaml", "--train", "--output", "new")
    assert_user_error(changed, "this has changed since: the text of data.train;")


@pytest.mark.slow
@pytest.mark.parametrize("held_out", ["test", "validation"])
def test_models_with_tags_are_compared_with_the_tags_of_the_text(
    held_out: str, tiny: Path, run_copy: Path, tmt: Tmt
) -> None:
    shutil.rmtree("runs")
    valid = "[{name: de, src: valid.en, tgt: valid.de, tag: 2de}, {name: en, src: valid.de, tgt: valid.en, tag: 2en}]"
    test = "{back: {src: test.en, tgt: test.de, reverse: true, tag: 2en}}" if held_out == "test" else "{}"
    train = (
        "[{name: de, src: train.en, tgt: train.de, tag: 2de}, "
        "{name: en, src: train.en, tgt: train.de, tag: 2en, reverse: true}]"
    )
    overrides = (f"data.train={train}", f"data.validation={valid}", f"data.test={test}", "train.max_steps=4")
    done = tmt("repair", "tiny.yaml", *overrides, "validation.every=4", "--train", "--output", "new", "--json")
    scores = json.loads(assert_succeeded(done))["scores"]
    assert [*scores] == ["back" if held_out == "test" else "validation"]


def test_training_needs_a_configuration_and_a_folder_of_its_own(tiny: Path, run_copy: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("repair", run_copy, "--train"), "is a run; with --train")
    assert_succeeded(tmt("repair", "tiny.yaml", "--output", "plain"))
    done = tmt("repair", "tiny.yaml", "--train", "--output", "plain")
    assert_user_error(done, "plain: exists already, and --train has not made it")
    Path("plain/repair.json").unlink()
    done = tmt("repair", "tiny.yaml", "--train", "--output", "plain")
    assert_user_error(done, "plain: exists already, and --train has not made it")


def test_text_that_cannot_be_repaired_is_refused_before_the_training(tiny: Path, run_copy: Path, tmt: Tmt) -> None:
    shutil.rmtree("runs")
    scored = "data.filters=[score: {file: f, min: 0}]"
    assert_user_error(tmt("repair", "tiny.yaml", scored, "--train", "--output", "new"), "has one score per line")
    assert not Path("runs").exists()
