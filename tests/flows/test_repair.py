"""`tmt check --write` pairs lines again, lists what it did, and adds filters to the configuration."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.data.data_config import TrainSource
from transformer_mt.data.sources import load_pairs
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.check import check_corpus, is_repairable, repair_corpus
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.prepare import load_split

Pair = tuple[str, str]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [*dict.fromkeys(load_pairs("train"))][:2000]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(src: Sequence[str], tgt: Sequence[str], *settings: str) -> Config:
    """Write the training text, and return a configuration that names it."""
    for language, lines in (("en", src), ("de", tgt)):
        Path(f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    overrides = ("name=mine", "data.train={src: train.en, tgt: train.de}", "data.test={}", "data.cache_dir=cache")
    return configuration.load(configuration.find_preset("quickstart"), (*overrides, *settings))


def read(folder: str) -> list[Pair]:
    sides = ((Path(folder) / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de"))
    return list(zip(*sides, strict=True))


def read_changes() -> list[dict[str, str]]:
    head, *rows = [line.split("\t") for line in Path("new/changes.tsv").read_text(encoding="utf-8").splitlines()]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_a_correct_corpus_is_not_changed_and_the_new_configuration_trains_on_it(pairs: list[Pair]) -> None:
    config = write([src for src, _ in pairs[:600]], [tgt for _, tgt in pairs[:600]])
    config_path, counts = repair_corpus(config, Path("new"))
    assert read_changes() == []
    assert counts["train"].n_pairs == 600
    assert read("new") == pairs[:600]
    new = configuration.load(config_path)
    (train,) = new.data.train_sources
    assert (new.name, train.src, train.tgt) == ("mine-repaired", ("new/train.en",), ("new/train.de",))
    assert new.model_copy(update={"name": config.name, "data": config.data}) == config
    assert len(load_split(new, "train")) > 590
    assert sorted(path.name for path in Path("new").iterdir()) == [
        "changes.tsv", "mine-repaired.yaml", "train.de", "train.en"
    ]  # fmt: skip


def test_a_repaired_configuration_needs_no_second_repair(pairs: list[Pair]) -> None:
    config = write([*(src for src, _ in pairs[:300]), *10 * [""]], [tgt for _, tgt in pairs[:310]])
    assert is_repairable(config, check_corpus(config))
    repaired = configuration.load(repair_corpus(config, Path("new"))[0])
    assert not is_repairable(repaired, check_corpus(repaired))


def test_shifted_lines_are_paired_again(pairs: list[Pair]) -> None:
    """A foreign line at target line 501, and a missing target line 1,500."""
    src, tgt = zip(*pairs, strict=True)
    repair_corpus(write(src, [*tgt[:500], "Es regnet.", *tgt[500:1499], *tgt[1500:]]), Path("new"))
    left = read("new")
    assert {*left} <= {*pairs} and len(left) > len(pairs) - 12
    cut = {(row["src_line"], row["tgt_line"]) for row in read_changes() if row["action"] == "cut"}
    assert ("", "train.de:501") in cut
    shifted = [row for row in read_changes() if row["action"] == "shift"]
    assert 990 < len(shifted) <= 1000
    assert (shifted[9]["src_line"], shifted[9]["tgt_line"]) == ("train.en:510", "train.de:511")


@pytest.mark.parametrize("missing", ["source", "target"])
def test_texts_of_different_length_are_repaired(missing: str, pairs: list[Pair]) -> None:
    src, tgt = map(list, zip(*pairs[:1000], strict=True))
    del (src if missing == "source" else tgt)[400]
    _, counts = repair_corpus(write(src, tgt), Path("new"))
    assert {counts["train"].n_src, counts["train"].n_tgt} == {999, 1000}
    left = read("new")
    assert {*left} <= {*pairs[:1000]} and pairs[999] in left and len(left) > 1000 - 12


def test_pairs_with_bad_lines_are_cut_if_some_may_be_left_out(pairs: list[Pair]) -> None:
    """A target line is missing, too, so that later bad lines are shifted."""
    src, tgt = map(list, zip(*pairs[:600], strict=True))
    config = write(src, [*tgt[:300], *tgt[301:]])
    for name, line in (("train.en", 100), ("train.de", 200), ("train.de", 500)):
        lines = Path(name).read_bytes().splitlines(keepends=True)
        lines[line - 1] = b"caf\xe9\n"
        Path(name).write_bytes(b"".join(lines))

    def allow(maximum: int) -> Config:
        return config.model_copy(update={"data": config.data.model_copy(update={"max_bad_rows": maximum})})

    for maximum in (0, 2):
        with pytest.raises(UserError, match=r"train\.(en:100|de:500): not UTF-8"):
            repair_corpus(allow(maximum), Path("new"))
    config_path, counts = repair_corpus(allow(3), Path("new"))
    left = read("new")
    assert {*left} <= {*pairs} and not {pairs[99], pairs[199], pairs[500]} & {*left}
    assert counts["train"].n_pairs == len(left) > 590 - 12
    cut = {row["src_line"] or row["tgt_line"] for row in read_changes() if row["action"] == "cut"}
    assert {"train.en:100", "train.de:100", "train.en:200", "train.en:501", "train.de:500"} <= cut
    assert b"\0" not in Path("new/changes.tsv").read_bytes()
    assert len(load_split(configuration.load(config_path), "train")) > 500


def test_the_new_configuration_trains_on_cleaned_text_without_bad_pairs(pairs: list[Pair]) -> None:
    src, tgt = map(list, zip(*pairs[:600], strict=True))
    longest = max(range(len(src)), key=lambda row: len(src[row]))
    tgt[longest] = src[longest]
    umlaut = next(row for row, line in enumerate(tgt) if "ä" in line)
    tgt[umlaut] = tgt[umlaut].encode().decode("cp1252")
    src[30] = f"{src[30]}\u200b"
    config_path, _ = repair_corpus(write(src, tgt), Path("new"))
    left = [*load_split(configuration.load(config_path), "train")]
    assert left == [pair for row, pair in enumerate(pairs[:600]) if row != longest]


def test_kept_lines_stay_as_they_are_and_line_breaks_in_cells_become_spaces(pairs: list[Pair]) -> None:
    src, tgt = map(list, zip(*pairs[:100], strict=True))
    src[40], tgt[40] = f"\u00a0{src[40]}  ", tgt[40].replace(" ", "\t")
    repair_corpus(write(src, tgt), Path("new"))
    assert Path("new/train.en").read_bytes() == Path("train.en").read_bytes()
    assert Path("new/train.de").read_bytes() == Path("train.de").read_bytes()
    rows = [f'"{a}","{b}"\n' for a, b in pairs[:100]]
    rows[40] = rows[40].replace(" ", "\n", 1)
    Path("t.csv").write_text(f"en,de\n{''.join(rows)}", encoding="utf-8")
    repair_corpus(write(src, tgt, "data.train={table: t.csv}"), Path("table"))
    assert read("table") == pairs[:100]


def test_filters_of_the_configuration_stay_and_unsuitable_ones_are_not_added(pairs: list[Pair]) -> None:
    src, tgt = zip(*pairs[:99], strict=True)
    config = write(src, tgt, "data.validation=null", "data.tgt_lang=qaa", "data.filters=[length, {ratio: {max: 2}}]")
    config_path, _ = repair_corpus(config, Path("new"))
    new = configuration.load(config_path)
    kinds = [filter_.kind for filter_ in new.data.filters]
    assert kinds == ["normalize", "ratio", "copy", "numbers", "urls", "repetition", "length", "ratio"]
    assert len(load_split(new, "train")) > 80


def test_sides_of_one_language_are_different_files(pairs: list[Pair]) -> None:
    sources = [src for src, _ in pairs[:99]]
    targets = [src if i % 3 == 0 else f"I know that {src} It is true." for i, src in enumerate(sources)]
    for name, lines in (("a.en", targets), ("b.en", sources)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    text = "data: {src_lang: en, tgt_lang: en, train: {src: b.en, tgt: a.en, tag: x}, cache_dir: cache}"
    Path("same.yaml").write_text(text, encoding="utf-8")
    config_path, _ = repair_corpus(configuration.load(Path("same.yaml")), Path("new"))
    (train,) = configuration.load(config_path).data.train_sources
    assert (train.src, train.tgt, train.tag) == (("new/train.src",), ("new/train.tgt",), "x")
    assert Path("new/train.src").read_text(encoding="utf-8").splitlines() == sources


def test_each_source_is_repaired_into_its_own_files(pairs: list[Pair]) -> None:
    """The files of `back` are shifted."""
    en, de = map(list, zip(*pairs, strict=True))
    write(en[:500], de[:500])
    Path("back.en").write_text("".join(f"{line}\n" for line in en[500:1500]), encoding="utf-8")
    Path("back.de").write_text("".join(f"{line}\n" for line in [*de[500:900], *de[901:1500]]), encoding="utf-8")
    train = """
    - {name: web, src: train.en, tgt: train.de, weight: 3, tag: 2de}
    - {name: back, src: back.de, tgt: back.en, src_lang: de, tgt_lang: en, weight: 1, tag: 2en}"""
    text = f"data:\n  src_lang: en\n  tgt_lang: de\n  cache_dir: cache\n  train:{train}\n"
    Path("two.yaml").write_text(text, encoding="utf-8")
    config_path, counts = repair_corpus(configuration.load(Path("two.yaml")), Path("new"))
    web, back = counts["web"], counts["back"]
    assert (web.n_src, web.n_tgt, web.n_pairs) == (500, 500, 500) and (back.n_src, back.n_tgt) == (999, 1000)
    assert back.n_shifted > 590 and {row["source"] for row in read_changes()} == {"back"}
    new_web, new_back = configuration.load(config_path).data.train_sources
    assert isinstance(new_web, TrainSource) and isinstance(new_back, TrainSource)
    assert [(source.name, source.weight, source.tag) for source in (new_web, new_back)] == [
        ("web", 3, "2de"),
        ("back", 1, "2en"),
    ]
    assert new_back.languages("en", "de") == ("de", "en")
    for source, expected, counts in ((new_web, pairs[:500], web), (new_back, pairs[500:1500], back)):
        (src,), (tgt,) = (
            (Path(file).read_text(encoding="utf-8").splitlines() for file in side) for side in (source.src, source.tgt)
        )
        left = list(zip(src, tgt, strict=True)) if source is new_web else list(zip(tgt, src, strict=True))
        assert {*left} <= {*expected} and len(left) == counts.n_pairs > 0.95 * len(expected)


def test_a_corpus_that_is_not_text_files_is_repaired() -> None:
    train = "data.train={builtin: quickstart, split: validation}"
    overrides = (train, "data.validation=null", "data.cache_dir=cache", "data.test={}")
    config = configuration.load(configuration.find_preset("quickstart"), overrides)
    _, counts = repair_corpus(config, Path("new"))
    assert counts["train"].n_pairs > 0.9 * len(load_pairs("validation"))


def test_wrong_input_is_refused_and_nothing_is_written(pairs: list[Pair]) -> None:
    config = write([src for src, _ in pairs], [])
    with pytest.raises(UserError, match=r"train\.de: holds no lines"):
        repair_corpus(config, Path("new"))
    targets = [*pairs[:100]]
    random.Random(1).shuffle(targets)
    with pytest.raises(UserError, match=r"nothing was written"):
        repair_corpus(write([src for src, _ in pairs[:100]], [tgt for _, tgt in targets]), Path("new"))
    with pytest.raises(UserError, match="swap src_lang and tgt_lang"):
        repair_corpus(write([tgt for _, tgt in pairs], [src for src, _ in pairs]), Path("new"))
    assert not [path for path in Path().iterdir() if path.name.startswith(("new", ".new"))]
    Path("new").mkdir()
    with pytest.raises(UserError, match="new: exists already"):
        repair_corpus(config, Path("new"))


def test_command_prints_what_was_changed(tiny: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    write(["one two three four"] * 30 + [""], ["eins zwei drei vier"] * 31)
    Path("mine.yaml").write_text(
        "data: {src_lang: en, tgt_lang: de, train: {src: train.en, tgt: train.de}, cache_dir: cache}", encoding="utf-8"
    )
    printed = assert_succeeded(tmt("check", "mine.yaml", "--write", "new"))
    assert "tmt train --config new/mine-repaired.yaml" in printed
    report = json.loads(assert_succeeded(tmt("check", "mine.yaml", "--write", "other", "--json")))
    assert report["config_path"] == "other/mine-repaired.yaml" and report["sources"]["train"]["n_pairs"] == 31
    assert_user_error(tmt("check", "mine.yaml", "--write", "third", "--workers", "2"), "--workers")
