"""`tmt init`: the configuration that it writes, and refused input."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error, read_folder

from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus, load_pairs
from transformer_mt.data.tables import read_table
from transformer_mt.flows import configuration
from transformer_mt.flows.table_columns import choose_columns

PAIRS = load_pairs("test")[:40]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with text files and tables of the same pairs, and change to it."""
    import pyarrow
    import pyarrow.parquet

    monkeypatch.chdir(tmp_path)
    src, tgt = ("".join(f"{pair[side]}\n" for pair in PAIRS) for side in (0, 1))
    files = {
        "a.en": src,
        "a.de": tgt,
        "table.tsv": "source\ttarget\n" + "".join(f"{en}\t{de}\n" for en, de in PAIRS),
        "three.csv": "de,en,note\n" + "".join(f'"{de}","{en}",x\n' for en, de in PAIRS),
        "nested.jsonl": "".join(json.dumps({"translation": {"en": en, "de": de}}) + "\n" for en, de in PAIRS),
        "no_header.tsv": "".join(f"{en}\t{de}\n" for en, de in PAIRS),
        "words.csv": "dog,Hund\n" + "".join(f'"{en}","{de}"\n' for en, de in PAIRS),
        "many.tsv": "".join(f"{n}\t{en}\t{de}\t{en}\n" for n, (en, de) in enumerate(PAIRS)),
        "back.tsv.zst": "".join(f"{n}\t{de}\t{en}\tnews\n" for n, (en, de) in enumerate(PAIRS)),
        "a.srt": src,
        "short.de": tgt.partition("\n")[2],
        "copy.en": src,
        "blank.de": tgt + "\n \n",
        "$HOME.en": src,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    rows = [f"{en}\t{de}\n" for en, de in PAIRS]
    (tmp_path / "bad.tsv").write_text("".join(["en\tde\n", "x\n", *rows[1:], "y\n", *rows[:1]]), encoding="utf-8")
    units = "".join(
        f"<tu><tuv xml:lang='en-US'><seg>{en}</seg></tuv><tuv xml:lang='DE'><seg>{de}</seg></tuv></tu>"
        for en, de in PAIRS
    )
    (tmp_path / "utf16.tsv").write_text("".join(rows), encoding="utf-16")
    (tmp_path / "a.tmx").write_text(f"<tmx><body>{units}</body></tmx>", encoding="utf-8")
    with ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, text in {"README": "x", "a.de-en.de": tgt, "a.de-en.en": src, "a.de-en.xml": "<x/>"}.items():
            archive.writestr(name, text)
    (tmp_path / "link.yaml").symlink_to("nowhere")
    (tmp_path / "archive").write_bytes((tmp_path / "a.zip").read_bytes())
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(src.encode()))
    table = pyarrow.table({"en": [en for en, _ in PAIRS], "de": [de for _, de in PAIRS]})
    pyarrow.parquet.write_table(table, "pairs.parquet")
    return tmp_path


def test_init_writes_a_commented_configuration_and_prints_what_is_next(corpus: Path, tmt: Tmt) -> None:
    printed = assert_succeeded(tmt("init", "a.en", "a.de"))
    config = configuration.load(corpus / "mine.yaml")
    assert (config.data.src_lang, config.data.tgt_lang) == ("en", "de")
    assert config.data.train == Source(src=("a.en",), tgt=("a.de",))
    assert config.data.validation_size == 4
    text = (corpus / "mine.yaml").read_text(encoding="utf-8")
    assert text not in printed
    assert "mine.yaml is written: en to de, 40 pairs; next:" in printed.splitlines()
    for line in text.splitlines():
        assert ": " not in line or line.startswith("#") or "  # " in line
    assert "tmt check mine.yaml" in printed.splitlines()[-3]
    assert "tmt plan mine.yaml" in printed.splitlines()[-2]
    assert "tmt train --config mine.yaml" in printed.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (("a.en.gz", "a.de"), Source(src=("a.en.gz",), tgt=("a.de",))),
        (("table.tsv",), Source(table=("table.tsv",), src_column="source", tgt_column="target")),
        (("nested.jsonl",), Source(table=("nested.jsonl",))),
        (("pairs.parquet",), Source(table=("pairs.parquet",))),
        (("no_header.tsv",), Source(table=("no_header.tsv",), columns=("src", "tgt"))),
        (("back.tsv.zst", "--src-lang", "en"), Source(table=("back.tsv.zst",), columns=("_", "tgt", "src", "_"))),
        (("a.tmx",), Source(table=("a.tmx",))),
        (("a.zip", "--src-lang", "en"), Source(table=("a.zip",))),
    ],
)
def test_each_kind_of_file_is_read(arguments: tuple[str, ...], source: Source, corpus: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("init", *arguments, "--out", "x.yaml"))
    data = configuration.load(corpus / "x.yaml").data
    assert (data.train, data.src_lang, data.tgt_lang) == (source, "en", "de")


def write_tmx(path: Path, *codes: tuple[str, ...]) -> None:
    """Write a TMX file whose units have segments in some languages; unit N has the N-th codes, in turn."""
    units = "".join(
        "<tu>"
        + "".join(
            f"<tuv xml:lang='{code}'><seg>{de if code[:2].lower() == 'de' else en}</seg></tuv>"
            for code in codes[number % len(codes)]
        )
        + "</tu>"
        for number, (en, de) in enumerate(PAIRS)
    )
    path.write_text(f"<tmx><body>{units}</body></tmx>", encoding="utf-8")


EN_DE = ("--src-lang", "en", "--tgt-lang", "de")


@pytest.mark.parametrize(
    ("codes", "arguments", "columns"),
    [
        ([("EN-US", "DE-DE"), ("en-us", "de"), ("en-US", "de-AT")], EN_DE, ("en", "de")),
        ([("EN-US", "DE-DE"), ("en-us", "de"), ("en-US", "de-AT")], (), ("en", "de")),
        ([("EN-US", "DE-DE"), ("en-us", "de"), ("en-US", "de-AT", "fr")], EN_DE, ("en", "de")),
        ([("EN", "DE"), ("en", "de")], ("--columns", "en", "de"), ("en", "de")),
        ([("EN", "DE"), ("en", "de")], ("--columns", "De", "EN"), ("de", "en")),
        ([("eng", "deu"), ("en_GB", "de_CH")], EN_DE, ("en", "de")),
        ([("EN-GB", "en-us", "de"), ("en-GB", "de-DE")], ("--src-lang", "en-gb", "--tgt-lang", "de"), ("en-gb", "de")),
        ([("en-US", "de-DE", "fr", "es-419")], ("--src-lang", "EN", "--tgt-lang", "DE"), ("en", "de")),
        ([("en", "de", "zh-CN", "zh-TW")], EN_DE, ("en", "de")),
        ([("EN-us", "dE")], ("--tgt-lang", "de"), ("en", "de")),
    ],
)
def test_codes_of_a_language_in_tmx_may_differ(
    codes: list[tuple[str, ...]], arguments: tuple[str, ...], columns: tuple[str, str], tmp_path: Path, tmt: Tmt
) -> None:
    write_tmx(tmp_path / "c.tmx", *codes)
    assert_succeeded(tmt("init", tmp_path / "c.tmx", *arguments, "--out", tmp_path / "x.yaml"))
    config = configuration.load(tmp_path / "x.yaml")
    (source,) = config.data.train_sources
    found = [source.src_column or config.data.src_lang, source.tgt_column or config.data.tgt_lang]
    assert [name.lower() for name in found] == [*columns]
    pairs = [*read_table(tmp_path / "c.tmx", (found[0], found[1]))]
    texts = PAIRS if columns[1] == "de" else [(de, en) for en, de in PAIRS]
    assert [(pair.src, pair.tgt) for pair in pairs] == texts


@pytest.mark.parametrize(
    ("codes", "arguments"),
    [
        (("en", "de", "fr"), ()),
        (("en", "zh-CN", "zh-TW"), ("--src-lang", "en", "--tgt-lang", "zh")),
        (("en-US", "de-DE", "fr"), ("--columns", "en", "es")),
        (("en-US", "en-GB"), ()),
    ],
)
def test_an_open_choice_of_languages_in_tmx_is_refused(
    codes: tuple[str, ...], arguments: tuple[str, ...], tmp_path: Path, tmt: Tmt
) -> None:
    write_tmx(tmp_path / "c.tmx", codes)
    assert_user_error(tmt("init", tmp_path / "c.tmx", *arguments, "--out", tmp_path / "x.yaml"), "c.tmx", "column")
    assert not (tmp_path / "x.yaml").exists()


def test_validation_and_test_set_are_named(corpus: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("init", "a.en", "a.de", "--validation", "copy.en", "a.de", "--test", "a.en.gz", "a.de"))
    assert "40 pairs, scored at the end" in (corpus / "mine.yaml").read_text(encoding="utf-8")
    data = configuration.load(corpus / "mine.yaml").data
    assert data.validation == Source(src=("copy.en",), tgt=("a.de",))
    assert data.test == {"test": Source(src=("a.en.gz",), tgt=("a.de",))}


@pytest.mark.parametrize("option", ["--validation", "--test"])
def test_swapped_files_of_held_out_text_are_refused(option: str, corpus: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("init", "a.en", "a.de", option, "a.de", "a.en"), f"{option}: a.de and a.en: ")
    assert not (corpus / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "test"),
    [
        (
            ("three.csv", "--test", "table.tsv", "--validation", "a.de", "a.en"),
            Source(table=("table.tsv",), src_column="target", tgt_column="source"),  # German to English
        ),
        (("a.en", "a.de", "--test", "three.csv"), Source(table=("three.csv",))),
        (("a.en", "a.de", "--test", "no_header.tsv"), Source(table=("no_header.tsv",), columns=("src", "tgt"))),
    ],
)
def test_a_test_set_may_be_a_table(corpus: Path, tmt: Tmt, arguments: tuple[str, ...], test: Source) -> None:
    assert_succeeded(tmt("init", *arguments))
    assert "40 pairs, scored at the end" in (corpus / "mine.yaml").read_text(encoding="utf-8")
    assert configuration.load(corpus / "mine.yaml").data.test == {"test": test}


def test_given_languages_are_used(corpus: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("init", "a.en", "a.de", "--src-lang", "sco", "--tgt-lang", "gsw"))
    data = configuration.load(corpus / "mine.yaml").data
    assert (data.src_lang, data.tgt_lang) == ("sco", "gsw")


def test_doubtful_languages_are_warned_about(corpus: Path, tmt: Tmt) -> None:
    done = tmt("init", "a.en", "a.de", "--src-lang", "ger", "--tgt-lang", "qaa")
    assert done.returncode == 0
    assert "warning: " in done.stderr and "correct --src-lang" in done.stderr
    assert "warning: --tgt-lang qaa: " in done.stderr
    assert tmt("init", "a.en", "a.de", "--src-lang", "eng", "--out", "x.yaml").stderr == ""


def test_the_remedy_for_unequal_files_works_as_printed(corpus: Path, tmt: Tmt) -> None:
    pairs = load_pairs("train")[:1000]  # enough to align them
    for name, lines in {
        "a.en": [src for src, _ in pairs],
        "short.de": [tgt for _, tgt in pairs[:700] + pairs[701:]],
    }.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    done = tmt("init", "a.en", "short.de")
    assert_user_error(done, "`tmt check pairs.yaml`", "`tmt check pairs.yaml --write repaired`")
    Path("pairs.yaml").write_text(done.stderr.splitlines()[-1], encoding="utf-8")
    assert "short.de has 999" in tmt("check", "pairs.yaml").stdout
    assert_succeeded(tmt("check", "pairs.yaml", "--write", "repaired"))
    (command,) = re.findall("then `tmt (init .*)`", done.stderr)
    assert_succeeded(tmt(*command.split()))


def test_an_existing_file_is_replaced_only_with_force(corpus: Path, tmt: Tmt) -> None:
    (corpus / "mine.yaml").write_text("mine", encoding="utf-8")
    assert_user_error(tmt("init", "a.en", "a.de"), "mine.yaml: exists already", "--force")
    assert (corpus / "mine.yaml").read_text(encoding="utf-8") == "mine"
    assert_succeeded(tmt("init", "a.en", "a.de", "--force"))
    configuration.load(corpus / "mine.yaml")


@pytest.mark.parametrize("name", configuration.list_presets())
def test_a_preset_is_written_with_the_settings_that_it_inherits(name: str, corpus: Path, tmt: Tmt) -> None:
    assert_succeeded(tmt("init", "--preset", name))
    assert configuration.load(corpus / f"{name}.yaml") == configuration.load(configuration.find_preset(name))
    before = read_folder(corpus)
    assert_user_error(tmt("init", "--preset", name), f"{name}.yaml: exists already", "--force")
    assert read_folder(corpus) == before


def test_presets_are_listed_with_descriptions(tmt: Tmt) -> None:
    _, *rows, _ = tmt("init", "--preset").stdout.splitlines()
    assert [row.split()[0] for row in rows] == [*configuration.list_presets()]
    assert all(len(row.split()) > 5 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--preset", "quick"), ("preset quick; ", "quickstart", "low_resource")),
        (("--preset", "a.en", "a.de"), ("a.de: ", "--preset")),
        (("a.en", "a.de", "--preset", "quickstart"), ("a.en: ", "--preset")),
        (("a.en", "a.de", "--preset"), ("a.en: ", "--preset")),
        (("--preset", "quickstart", "--src-lang", "fr"), ("--src-lang: ", "--preset")),
        (("--preset", "quickstart", "--from", "runs/a"), ("--from: ", "--preset")),
        (("--preset", "--out", "x.yaml"), ("--preset: ",)),
        (("--preset", "quickstart", "--out", "x.txt"), ("--out x.txt: ",)),
        (("--preset", "quickstart", "--out", "none/x.yaml"), ("--out none/x.yaml: ",)),
        (("--preset", "quickstart", "--out", "/proc/x.yaml"), ("/proc/x.yaml: ", "--out")),
        (("--preset", "quickstart", "--out", "link.yaml"), ("link.yaml: exists already",)),
        (("a.en", "short.de"), ("a.en has 40 lines, short.de has 39 lines",)),
        (("a.en", "blank.de"), ("a.en has 40 lines, blank.de has 42 lines", "delete")),
        (("a.en", "a.de", "--validation", "a.en", "blank.de"), ("--validation: ", "blank.de has 42 lines", "delete")),
        (("a.en", "a.de", "--validation", "a.en", "a.de"), ("--validation: a.en and a.de: ", "training text")),
        (("table.tsv", "--test", "table.tsv"), ("--test: table.tsv: ", "training text")),
        (("$HOME.en", "a.de"), ("$HOME.en: ", "rename")),
        (("a.en", "a.de", "--test", "$HOME.en", "a.de"), ("$HOME.en: ", "rename")),
        (("archive",), ("archive: is a ZIP archive",)),
        (("no_header.tsv", "--columns", "en", "de"), ("no_header.tsv: has no header", PAIRS[0][0][:15], "1 to 2")),
        (("many.tsv",), ("many.tsv: has no header", "2 (en), 3 (de), 4 (en)", "--columns")),
        (("bad.tsv", "--max-bad-rows", "1"), ("bad.tsv:2: 1 columns", "bad.tsv:42: ", "2 bad rows")),
        (("utf16.tsv",), ("utf16.tsv:1: is text in UTF-16",)),
        (("a.srt", "a.srt"), ("a.srt: is subtitles",)),
        (("a.srt",), ("a.srt: is subtitles",)),
        (("a.en", "a.de", "--src-lang", "en", "--tgt-lang", "en"), ("a.en and a.de: ", "--tgt-lang en-x-simple")),
        (("a.en", "copy.en"), ("source and target are equal in every pair",)),
        (("a.en", "a.de", "--src-lang", "de", "--tgt-lang", "en"), ("a.en and a.de: ", "swap --src-lang")),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(
    arguments: tuple[str, ...], parts: tuple[str, ...], corpus: Path, tmt: Tmt
) -> None:
    before = read_folder(corpus)
    assert_user_error(tmt("init", *arguments), *parts)
    assert read_folder(corpus) == before


@pytest.mark.parametrize(
    ("name", "source", "remedy"),
    [
        ("pairs.txt", "no_header.tsv", "rename it to pairs.tsv"),
        ("pairs", "no_header.tsv", "rename it to pairs.tsv"),
        ("memory.xml", "a.tmx", "rename it to memory.tmx"),
        ("pairs.ndjson", "nested.jsonl", "rename it to pairs.jsonl"),
        ("pairs.json", "nested.jsonl", "rename it to pairs.jsonl"),
        ("lines.txt", "a.en", ".parquet or .zip"),
    ],
)
def test_a_table_under_another_name_is_recognised(name: str, source: str, remedy: str, corpus: Path, tmt: Tmt) -> None:
    (corpus / name).write_bytes((corpus / source).read_bytes())
    assert_user_error(tmt("init", name), f"{name}: pass two text files", remedy)


@pytest.mark.parametrize("text", ['[{"en": "a",\n "de": "b"}]', "[\n{}]", " [ {}, \n"])
def test_a_list_in_json_is_refused_with_a_remedy(text: str, corpus: Path, tmt: Tmt) -> None:
    (corpus / "list.jsonl").write_text(text, encoding="utf-8")
    assert_user_error(tmt("init", "list.jsonl"), "list.jsonl:1: not valid JSON", "one object per line")


@pytest.mark.parametrize("name", ["gr\udcf6\udcdfe.en", "\udcff.en", "b\udce4.tsv"])
def test_a_name_that_no_configuration_can_contain_is_refused(name: str, corpus: Path, tmt: Tmt) -> None:
    """Archives of other systems contain such names, whose bytes are not UTF-8."""
    table = name.endswith(".tsv")
    (corpus / name).write_bytes((corpus / ("table.tsv" if table else "a.en")).read_bytes())
    before = read_folder(corpus)
    assert_user_error(tmt("init", name, *([] if table else ["a.de"])), "is not UTF-8 text", "rename")
    assert_user_error(tmt("init", "a.en", "a.de", "--validation", name, "a.de"), "is not UTF-8 text", "rename")
    assert_user_error(tmt("init", "a.en", "a.de", "--out", f"{name}.yaml"), "is not UTF-8 text", "another name")
    assert read_folder(corpus) == before


@pytest.mark.parametrize("others", [["a.de"], [], ["a.de", "--test", "pipe.en"]])
def test_a_pipe_is_refused_because_it_can_be_read_only_once(others: list[str], corpus: Path, tmt: Tmt) -> None:
    os.mkfifo(corpus / "pipe.en")
    first = "a.en" if "--test" in others else "pipe.en"
    pipes = ["a.de"] if "--test" in others else []
    assert_user_error(tmt("init", first, *others, *pipes), "pipe.en: ")


@pytest.mark.slow
@pytest.mark.parametrize("tgt_lang", ["zh"])
def test_the_written_configuration_trains(tgt_lang: str, corpus: Path, tmt: Tmt) -> None:
    """With a smaller model and fewer steps, which take less time."""
    text = (corpus / "a.de").read_text(encoding="utf-8")
    if tgt_lang == "zh":  # letters and spaces become Chinese characters
        text = "".join(chr(0x4E00 + ord(letter)) if letter != "\n" else letter for letter in text)
    (corpus / f"b.{tgt_lang}").write_text(text, encoding="utf-8")
    assert_succeeded(tmt("init", "a.en", f"b.{tgt_lang}"))
    smaller = ("model.d_model=16", "model.encoder.n_layers=1", "model.decoder.n_layers=1", "validation.probes=0")
    shorter = ("train.max_steps=3", "schedule.warmup_steps=2", "device=cpu", "threads=1")
    assert_succeeded(tmt("train", "--config", "mine.yaml", *smaller, *shorter))
    assert configuration.load(corpus / "runs" / "mine" / "config.yaml").data.tgt_lang == tgt_lang


def test_a_guessed_header_is_reported(corpus: Path, tmt: Tmt) -> None:
    assert 'line 1 of words.csv reads "dog | Hund", which is no header' in tmt("init", "words.csv").stderr
    assert tmt("init", "table.tsv", "--out", "t.yaml").stderr == ""
    rows = (corpus / "table.tsv").read_text(encoding="utf-8").splitlines()
    (corpus / "empty_cells.tsv").write_text("".join(f"{row}\t\t\n" for row in rows), encoding="utf-8")
    assert tmt("init", "empty_cells.tsv", "--out", "e.yaml").stderr == ""


def test_bad_rows_are_written_to_the_configuration(corpus: Path, tmt: Tmt) -> None:
    done = tmt("init", "bad.tsv", "--max-bad-rows", "2")
    assert_succeeded(done)
    assert "left out: bad.tsv:2: " in done.stderr and "left out: bad.tsv:42: " in done.stderr
    assert configuration.load(corpus / "mine.yaml").data.max_bad_rows == 2


@pytest.mark.parametrize(
    "header",
    ["English|Deutsch", "eng_Latn|deu_Latn", "text_en|text_de"],
)
def test_names_of_columns_are_recognised(header: str, corpus: Path) -> None:
    names = tuple(header.split("|"))
    rows = ["\t".join(names), *map("\t".join, PAIRS)]
    (corpus / "t.tsv").write_text("\n".join(rows), encoding="utf-8")
    assert choose_columns(Path("t.tsv"), None, None, None).columns == names
    swapped = ["\t".join(reversed(names)), *rows[1:]]
    (corpus / "t.tsv").write_text("\n".join(swapped), encoding="utf-8")
    assert choose_columns(Path("t.tsv"), None, None, None).columns == (names[1], names[0])
    numbered = [f"{number}\t{row}" for number, row in enumerate(rows)]
    (corpus / "t.tsv").write_text("\n".join(["id" + numbered[0][1:], *numbered[1:]]), encoding="utf-8")
    assert choose_columns(Path("t.tsv"), None, None, None).columns == names


@pytest.mark.parametrize("first", ["was|war", "no|nein"])
def test_a_first_pair_is_no_header(first: str, corpus: Path) -> None:
    (corpus / "t.tsv").write_text("\n".join([first.replace("|", "\t"), *map("\t".join, PAIRS)]), encoding="utf-8")
    assert choose_columns(Path("t.tsv"), None, None, None).source.columns == ("src", "tgt")


def write_quoted_table(path: str, quoting: Literal[0, 1]) -> None:
    pairs = [(f'Er sagt "{tgt}"', src) if i % 5 == 0 else (tgt, src) for i, (src, tgt) in enumerate(load_pairs("test"))]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", quoting=quoting).writerows([("german", "english"), *pairs[:100]])


def test_csv_quotes_in_a_tsv_file_are_reported_with_a_remedy(corpus: Path, tmt: Tmt) -> None:
    write_quoted_table("q.tsv", csv.QUOTE_MINIMAL)
    assert "20.0% of the pairs have the quotes of a CSV field" in tmt("init", "q.tsv").stdout
    findings = json.loads(tmt("check", "mine.yaml", "--json").stdout)["findings"]
    assert {each["name"]: each["severity"] for each in findings}["CSV quotes"] == "warning"
    write_quoted_table("q.tsv", csv.QUOTE_ALL)
    assert_user_error(tmt("init", "q.tsv", "--force"), "q.tsv: ", "rename it to q.csv")
    unquoted_header = Path("q.tsv").read_text(encoding="utf-8").replace('"german"\t"english"', "german\tenglish", 1)
    Path("r.tsv").write_text(unquoted_header, encoding="utf-8")
    assert_user_error(tmt("init", "r.tsv", "--force"), "r.tsv: ", "rename it to r.csv")
    Path("q.tsv").rename("q.csv")
    assert "CSV" not in tmt("init", "q.csv", "--force").stdout
    (source,) = configuration.load(corpus / "mine.yaml").data.train_sources
    assert next(iter(load_corpus(source, "de", "en", Path("cache"))))[0] == f'Er sagt "{load_pairs("test")[0][1]}"'


def test_the_case_of_sources_in_capitals_is_not_changed(corpus: Path, tmt: Tmt) -> None:
    Path("gloss.en").write_text(Path("a.en").read_text(encoding="utf-8").upper(), encoding="utf-8")
    for source, restores_case in (("gloss.en", False), ("a.en", True)):
        assert tmt("init", source, "a.de", "--force").returncode == 0
        assert configuration.load(corpus / "mine.yaml").decoding.restore_case is restores_case


def test_preprocessed_text_is_reported_with_a_remedy(corpus: Path, tmt: Tmt) -> None:
    pairs = load_pairs("test")[:100]
    for side, language in enumerate(("en", "de")):
        lines = [re.sub(r"(\w)([.,])", r"\1 \2", pair[side]).lower() for pair in pairs]
        Path(f"b.{language}").write_text("\n".join(lines), encoding="utf-8")
    done = tmt("init", "b.en", "b.de")
    tokenized, lower = [line for line in done.stdout.splitlines() if "% of the pairs " in line]
    assert "detokenize" in tokenized and "normalization: [lowercase]" in lower
    assert configuration.load(corpus / "mine.yaml").tokenizer.normalization == ("lowercase",)
    found = {
        each["name"]: each["severity"] for each in json.loads(tmt("check", "mine.yaml", "--json").stdout)["findings"]
    }
    assert (found["tokenized"], found["lower case"]) == ("warning", "info")
    plain = tmt("init", "a.en", "a.de", "--force").stdout
    assert "tokenized" not in plain and "lowercase" not in plain
