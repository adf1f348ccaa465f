"""Each filter on small corpora: what it removes, and what it keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.data_config import Source
from transformer_mt.data.sources import load_corpus, load_pairs
from transformer_mt.data.stages import IN_PROCESS_RUNNER, LocalRunner
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import Config, load
from transformer_mt.flows.prepare import load_filtered
from transformer_mt.tools.languages.detection import LanguageDetector
from transformer_mt.tools.languages.scripts import language_scripts
from transformer_mt.tools.quality.checks import CorpusCheck, check_pairs
from transformer_mt.tools.quality.filter_base import Filter
from transformer_mt.tools.quality.filter_pipeline import filter_corpus
from transformer_mt.tools.quality.quality_config import FILTERS, FilterList, make_filter

Pairs = list[tuple[str, str]]
Apply = Callable[..., ParallelCorpus]

GOOD: Pairs = [
    ("A brown dog runs over the green grass.", "Ein brauner Hund rennt über das grüne Gras."),
    ("Two men are talking to each other in the street.", "Zwei Männer unterhalten sich auf der Straße."),
    ("Children play football in front of a large house.", "Kinder spielen vor einem großen Haus Fußball."),
    ("Yes.", "Ja."),
]
ZH: Pairs = [
    ("A dog runs over the grass.", "一只狗在草地上奔跑。"),
    ("Two men talk in the street.", "两个男人在街上交谈。"),
]
RU: Pairs = [
    ("A dog runs over the grass.", "Собака бежит по траве."),
    ("Two men talk outside.", "Двое мужчин беседуют."),
]


def parse(*filters: Any) -> tuple[Filter, ...]:
    return TypeAdapter(FilterList).validate_python(list(filters))


@pytest.fixture
def apply(write_corpus: Callable[..., ParallelCorpus]) -> Apply:
    """`apply(pairs, filter, ..., tgt="de", validation=pairs)`: the pairs that the filters leave."""

    def apply(pairs: Pairs, *filters: Any, tgt: str = "de", **held_out: Pairs) -> ParallelCorpus:
        others = {name: write_corpus(other, name) for name, other in held_out.items()}
        return filter_corpus(
            write_corpus(pairs), parse(*filters), ("en", tgt), others, Path("cache"), IN_PROCESS_RUNNER
        )

    return apply


@pytest.mark.parametrize(
    ("filter_", "bad"),
    [
        ("length", ("", "Ja.")),
        ({"length": {"max": 20}}, ("word " * 21, "Wort " * 20)),
        ("ratio", ("Yes.", "Zwei Männer unterhalten sich auf der Straße. " * 3)),
        ("language", ("Two men are talking in the street.", "Deux hommes parlent dans la rue.")),
        ("script", ("Two men are talking.", "Двое мужчин тихо беседуют.")),
        ("copy", ("Two men are talking in the street.", "Two men are talking in the street !")),
        ("numbers", ("It was built in 1990.", "Es wurde 1995 gebaut.")),
        ("urls", ("See www.example.org for more.", "Mehr dazu im Internet.")),
        ("repetition", ("He laughs.", "Er lacht " * 8)),
        ({"regex": {"drop": r"\p{Cyrillic}"}}, ("Two men", "Zwei Männer мир")),
        ({"regex": {"side": "both", "drop": "^#"}}, ("# Two men", "# Zwei Männer")),
    ],
    ids=str,
)
def test_filter_removes_a_bad_pair_and_keeps_good_ones(filter_: Any, bad: tuple[str, str], apply: Apply) -> None:
    found = apply([*GOOD, bad, *GOOD], filter_)
    assert [*found] == GOOD * 2
    (report,) = found.filters
    assert (report.n_seen, report.n_affected) == (9, 1)
    assert report.examples[0][:3] == ("t.en:5", *bad) and report.examples[0].reason
    assert report.describe().startswith(f"filter {report.name} removed 1 of 9 pairs (11.1%), such as t.en:5 (")


@pytest.mark.parametrize("filter_", ["language", "script"])
def test_a_filter_that_removes_most_pairs_gives_a_warning_with_the_keys(filter_: str, apply: Apply) -> None:
    pairs = [("Two men are talking in the street.", "Двое мужчин тихо беседуют на улице.")]
    (report,) = apply([("Ok.", "Ok."), *pairs * 3], filter_, tgt="de").filters
    assert report.n_affected >= 3
    assert report.describe().startswith("warning: ")
    assert all(key in report.describe() for key in ("src_lang", "tgt_lang", "data.filters"))


PAIR_FILTERS = ("length", "ratio", "language", "script", "copy", "numbers", "urls", "repetition")


@pytest.mark.parametrize(("tgt", "pairs"), [("zh", ZH), ("ru", RU)])
def test_good_pairs_of_other_scripts_are_kept(tgt: str, pairs: Pairs, apply: Apply) -> None:
    assert [*apply(pairs * 5, *PAIR_FILTERS, tgt=tgt)] == pairs * 5


@pytest.mark.parametrize("text", ["Ok.", "Angela Merkel", "1990", "…"])
def test_sides_in_doubt_are_kept(text: str, apply: Apply) -> None:
    filters = [filter_ for filter_ in PAIR_FILTERS if filter_ != "ratio"]
    assert len(apply([*GOOD, (text, text)], *filters)) == 5


def test_normalize_changes_text_and_removes_nothing(apply: Apply) -> None:
    pairs = [("a\u200b  b\u00a0c ", "cafe\u0301 „x“"), ("d", "e")]
    found = apply(pairs, "normalize")
    assert [*found] == [("a b c", "café „x“"), ("d", "e")]
    assert found.filters[0].describe().startswith("filter normalize changed 1 of 2 pairs (50.0%)")
    assert found.filters[0].examples[0] == ("t.en:1", *pairs[0], "source and target changed")
    assert next(iter(apply(pairs, {"normalize": {"spaces": "no", "quotes": "yes"}}))) == ("a  b\u00a0c ", 'café "x"')
    assert [*apply([("a", "HÃ¼ndchen")], {"normalize": {"mojibake": "yes"}})] == [("a", "Hündchen")]


@pytest.mark.parametrize(
    ("of", "kept"), [("any", []), ("src", [1]), ("tgt", [0]), ("pair", [0, 1])], ids=["any", "src", "tgt", "pair"]
)
def test_overlap_ignores_case_spaces_and_punctuation(of: str, kept: list[int], apply: Apply) -> None:
    train = [("a dog  RUNS", "etwas"), ("something", "Ein Hund rennt!"), ("A dog runs.", "ein hund rennt")]
    pairs = [*train, ("other", "anderes")]
    news = [("x", "y"), ("A dog runs!", "Ein Hund rennt.")]
    found = apply(pairs, {"overlap": {"of": of}}, validation=[("x", "y")], news=news)
    assert [*found] == [*(train[i] for i in kept), ("other", "anderes")]
    assert {example.reason.partition(" is that of ")[2] for example in found.filters[0].examples} == {"pair 2 of news"}


@pytest.mark.parametrize("filter_", [{"duplicate": {"of": "src"}}, "overlap", {"overlap": {"of": "src"}}])
def test_an_empty_side_repeats_no_other_one(filter_: Any, apply: Apply) -> None:
    pairs = [("", "eins"), ("", "zwei")]
    assert [*apply(pairs, filter_, news=[("", "drei"), ("four", "")])] == pairs


def test_a_small_corpus_is_not_judged_by_its_own_lexicon(apply: Apply, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = load_pairs("train")[:20]
    assert [*apply(pairs, "unrelated")] == pairs
    assert "filter unrelated removes nothing from fewer than 1,000 pairs" in capsys.readouterr().err


def test_shards_share_the_function_of_a_filter(
    apply: Apply, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", 2)
    assert len(apply(GOOD, "unrelated").shards) == 2
    assert capsys.readouterr().err.count("filter unrelated removes nothing") == 1


NUMBERED: Pairs = [(f"source {i}", f"target {i}") for i in range(10)]


def test_language_without_detection_or_script_is_refused(apply: Apply) -> None:
    with pytest.raises(UserError, match="qq: "):
        apply(GOOD, "language", tgt="qq")
    with pytest.raises(UserError, match="the script of qq") as refused:
        apply(GOOD, "script", tgt="qq")
    (remedy,) = re.findall(r"regex: {.*}", str(refused.value))
    assert [*apply([*GOOD, RU[0]], yaml.safe_load(f"{{{remedy}}}"))] == GOOD
    assert len(apply(GOOD, "script", "language", tgt="de-AT")) == 4


NEAR = ("A brown dog walks over the green grass", "Ein brauner Hund rennt über das grüne Gras")


def test_near_duplicates_are_removed_and_exact_ones_are_kept(apply: Apply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 3)
    pairs = [*GOOD, *GOOD, NEAR]
    found = apply(pairs, "copy", {"near_duplicate": {"similarity": 0.75}})
    assert [*found] == GOOD * 2
    assert found.filters[1].examples == (("t.en:9", *NEAR, "83% similar to t.en:1"),)
    assert len(apply(pairs, {"near_duplicate": {"of": "src"}})) == 9


@pytest.mark.parametrize("name", ["overlap", "near_overlap"])
def test_a_filter_without_held_out_text_is_refused_before_the_text_is_read(name: str) -> None:
    with pytest.raises(UserError, match=rf"^x\.yaml:6: data\.filters\.0\.{name}: .*data\.validation"):
        configure(f"  - {name}")


def test_near_overlap_finds_similar_text(apply: Apply) -> None:
    held_out = {"validation": [("x", "y")], "news": [("x", "y"), ("A brown dog.", NEAR[1].replace("rennt", "rennnt"))]}
    assert len(apply(GOOD, "overlap", **held_out)) == 4
    found = apply(GOOD, "near_overlap", **held_out)
    assert [*found] == GOOD[1:]
    assert found.filters[0].examples[0].reason == "target is 93% similar to that of pair 2 of news"


# --- The filter column, which keeps pairs by a number in their table --------------------------------------------------

N_PAIRS = 10


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 3)


def configure(filters: str, train: str = "{table: t.tsv}", *overrides: str) -> Config:
    head = f"data:\n  src_lang: en\n  tgt_lang: de\n  train: {train}\n  filters:\n"
    Path("x.yaml").write_text(f"{head}{filters}\n", encoding="utf-8")
    return load(Path("x.yaml"), overrides)


def kept(filters: str, train: str = "{table: t.tsv}", *overrides: str) -> list[int]:
    """Return the numbers of the pairs that the filters leave."""
    return [int(src.split()[1]) for src, _ in load_filtered(configure(filters, train, *overrides))]


def write_rows(name: str) -> None:
    """Write a table with a score of `i / 10`, and -inf for the last pair."""
    rows = [{"en": f"source {i}", "de": f"target {i}", "score": i / 10} for i in range(N_PAIRS - 1)]
    rows.append({"en": f"source {N_PAIRS - 1}", "de": "target", "score": float("-inf")})
    match Path(name).suffix:
        case ".parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), name)
            return
        case _:
            text = "".join("\t".join(map(str, row)) + "\n" for row in (rows[0], *(row.values() for row in rows)))
    Path(name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", ["t.tsv", "t.parquet"])
def test_pairs_outside_the_range_are_removed(name: str) -> None:
    write_rows(name)
    assert kept("  - column: {name: score, min: 0.2, max: 0.6}", f"{{table: {name}}}") == [2, 3, 4, 5, 6]


def test_numbers_belong_to_the_pairs_that_other_filters_leave() -> None:
    """Filters that remove pairs, change their text and start a new stage keep the numbers of a pair."""
    write_rows("t.tsv")
    others = "  - regex: {drop: '[0367]'}\n  - normalize: {control: yes}\n  - duplicate: {of: src}\n"
    filters = f"{others}  - column: {{name: score, max: 0.8}}\n  - column: {{name: score, min: 0.15}}"
    assert kept(filters) == [2, 4, 5, 8]


def test_other_numbers_beside_the_same_text_change_the_result() -> None:
    for first in (0, 1):
        text = "".join(f"source {i}\ttarget {i}\t{first + i}\n" for i in range(4))
        Path("t.tsv").write_text(f"en\tde\tscore\n{text}", encoding="utf-8")
        assert kept("  - column: {name: score, min: 2}") == [*range(2 - first, 4)]


def test_each_of_several_sources_has_the_column_and_held_out_text_needs_none() -> None:
    write_rows("t.tsv")
    Path("u.tsv").write_text("en\tde\tscore\nsource 77\ttarget\t0.8\n", encoding="utf-8")
    Path("v.tsv").write_text("en\tde\nvalid 1\tvalid\n", encoding="utf-8")
    train = "[{name: a, table: t.tsv}, {name: b, table: u.tsv}]"
    assert kept("  - overlap\n  - column: {name: score, min: 0.8}", train, "data.validation={table: v.tsv}") == [8, 77]


@pytest.mark.parametrize(("cell", "shown"), [("high", '"high"'), ("nan", '"nan"'), ("", '""')])
def test_a_cell_without_a_number_is_an_error_with_its_place(cell: str, shown: str) -> None:
    write_rows("t.tsv")
    with Path("t.tsv").open("a", encoding="utf-8") as file:
        file.write(f"source 10\ttarget 10\t{cell}\n")
    with pytest.raises(UserError, match=rf"^t\.tsv:12: column score .*{shown}"):
        kept("  - column: {name: score, min: 0.2}")
    assert kept("  - column: {name: score, min: 0.8}", "{table: t.tsv}", "data.max_bad_rows=1") == [8]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("t.tsv", "en\tde\nsource 1\ttarget\n", r"t\.tsv: no column score"),
        ("t.jsonl", '{"en": "source 1", "de": "target", "score": true}\n', r"t\.jsonl:1: column score holds true"),
        ("t.tmx", "<tmx/>", r"t\.tmx: has no columns"),
    ],
)
def test_a_missing_column_is_an_error_with_its_place(name: str, text: str, place: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"^{place}"):
        kept("  - column: {name: score, min: 0.2}", f"{{table: {name}}}")


def test_text_files_have_no_columns() -> None:
    with pytest.raises(UserError, match=r"^x\.yaml:6: data\.filters\.0\.column: "):
        configure("  - column: {name: score, min: 0.2}", "{src: t.en, tgt: t.de}")


# --- Scripts of languages, also of codes that name the script, and of three-letter codes ------------------------------

CORRECT_TEXT = {
    "uz_Cyrl": "Болалар катта уйнинг олдида футбол ўйнашмоқда.",
    "pa-Arab": "بچے وڈے گھر دے سامنے فٹ بال کھیڈ رہے نیں۔",
    "ug-Latn": "Balilar chong öyning aldida putbol oynawatidu.",
    "mn-Mong": "ᠬᠡᠦᠬᠡᠳ ᠶᠡᠬᠡ ᠭᠡᠷ ᠦᠨ ᠡᠮᠦᠨᠡ ᠲᠣᠭᠯᠠᠵᠤ ᠪᠠᠢᠨ᠎ᠠ",
    "ms-Arab": "كانق٢ برماءين بولا سيڤق دهادڤن رومه بسر.",
    "ckb": "منداڵەکان لە بەردەم خانووە گەورەکە تۆپی پێ دەکەن.",
    "vie": "Trẻ em đang chơi bóng đá trước một ngôi nhà lớn.",
    "heb": "ילדים משחקים כדורגל מול בית גדול.",
    "srp": "Деца играју фудбал испред велике куће.",
}


@pytest.mark.parametrize(("language", "text"), CORRECT_TEXT.items())
def test_correct_text_passes_the_filters_script_and_language(
    language: str, text: str, write_corpus: Callable[..., ParallelCorpus]
) -> None:
    """Language detection knows most languages in one script only, so that the filter refuses the others."""
    names = ["script", "language"] if LanguageDetector.load().knows(language) else ["script"]
    filters: Any = TypeAdapter(FilterList).validate_python(names)
    corpus = write_corpus([("Children play football in front of a large house.", text)])
    assert len(filter_corpus(corpus, filters, ("en", language), {}, Path("cache"))) == 1


def test_detector_knows_three_letter_codes_and_languages_in_their_usual_script() -> None:
    detector = LanguageDetector.load()
    assert all(map(detector.knows, ["vie", "heb", "pes", "uz", "uz-Latn", "zh-Hant"]))
    assert not any(map(detector.knows, ["uz_Cyrl", "ckb", "sr-Latn", "qq"]))


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("pa", ("GURMUKHI",)),
        ("pa_PK", ("ARABIC",)),
        ("sr", ("CYRILLIC", "LATIN")),
        ("ko", ("HANGUL", "HAN")),
        ("zho_Hant", ("HAN",)),
        ("qq", None),
    ],
)
def test_scripts_of_a_language_are_known(language: str, scripts: tuple[str, ...] | None) -> None:
    assert language_scripts(language) == scripts


# --- data.filters in a YAML file: its forms, its errors, and the file of a run ----------------------------------------

HEAD = "data:\n  src_lang: en\n  tgt_lang: de\n  train: {builtin: quickstart}\n  filters:\n"


def read(folder: Path, filters: str, *overrides: str) -> Config:
    (folder / "x.yaml").write_text(HEAD + filters, encoding="utf-8")
    return load(folder / "x.yaml", overrides)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ("  - lenght\n", 'data.filters.0: unknown filter "lenght", did you mean "length"?'),
        ("  - length: {mx: 3}\n", 'data.filters.0.length.mx: unknown key, did you mean "max"?'),
        ("  - length:\n    max: 2\n", "data.filters.0: must be the name of one filter"),
        ("  - length: {min: 201}\n", "data.filters.0.length.min: 201 is more than max"),
        ("  - column\n", "data.filters.0.column.name: is required"),
        ("  - command: {run: x, min: 2}\n", "data.filters.0: this filter was removed"),
    ],
)
def test_error_names_file_line_key_and_remedy(filters: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, filters)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(f"x.yaml:6: {message}")


def test_filter_is_a_name_or_a_name_with_options(tmp_path: Path) -> None:
    config = read(tmp_path, "  - length\n  - ratio:\n  - ratio: {max: 2}\n  - {duplicate: {of: src}}\n")
    assert [filter_.kind for filter_ in config.data.filters] == ["length", "ratio", "ratio", "duplicate"]
    assert config.model_dump(mode="json")["data"]["filters"][1:] == [
        {"ratio": {"max": 3.0}},
        {"ratio": {"max": 2.0}},
        {"duplicate": {"of": "src", "normalized": False}},
    ]


def test_command_line_replaces_the_list(tmp_path: Path) -> None:
    config = read(tmp_path, "  - length\n", "data.filters=[copy, ratio: {max: 2}]")
    assert [filter_.kind for filter_ in config.data.filters] == ["copy", "ratio"]
    assert read(tmp_path, "  - length\n", "data.filters=[]").data.filters == ()


def test_run_file_has_the_filters_with_all_options(tmp_path: Path) -> None:
    filters = "  - regex: {side: tgt, drop: '\\p{Han}: \"#'}\n  - copy\n"
    config = read(tmp_path, filters)
    text = render_yaml(config)
    (tmp_path / "y.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "y.yaml").model_dump() == config.model_dump()
    filters = yaml.safe_load(text)["data"]["filters"]
    assert filters[0] == {"regex": {"side": "tgt", "drop": '\\p{Han}: "#', "keep": None}}
    assert filters[1] == {"copy": {"max": 0.8, "min_words": 4}}


# --- Order, cache, determinism and examples of a filtered corpus, and its share of false removals on clean text -------

WriteCorpus = Callable[..., ParallelCorpus]

MULTI30K = Path(__file__).resolve().parents[4] / "shared" / "data" / "multi30k"


def filter_texts(
    corpus: ParallelCorpus, *filters: Any, cache: str = "cache", tgt: str = "de", **held_out: Any
) -> ParallelCorpus:
    return filter_corpus(
        corpus, TypeAdapter(FilterList).validate_python([*filters]), ("en", tgt), held_out, Path(cache)
    )


def test_filters_are_applied_in_order(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus([("a", "x"), ("a ", "x"), ("a b", "y")])
    first = filter_texts(corpus, "duplicate", "normalize")
    second = filter_texts(corpus, "normalize", "duplicate")
    assert ([*first], [*second]) == ([("a", "x"), ("a", "x"), ("a b", "y")], [("a", "x"), ("a b", "y")])
    assert [(report.n_seen, report.n_affected) for report in second.filters] == [(3, 1), (3, 1)]
    assert first.key != second.key


def test_result_is_cached_until_something_changes(write_corpus: WriteCorpus) -> None:
    def count_results() -> int:
        return len([*Path("cache").glob("filter-*/stage.json")])

    corpus = write_corpus([("a", "x"), ("b", "y")])
    other = write_corpus([("c", "z")], "news")
    filters = {"regex": {"drop": "a"}}
    assert [*filter_texts(corpus, filters)] == [*filter_texts(corpus, filters)] == [("b", "y")]
    assert filter_texts(corpus, filters).filters == filter_texts(corpus, filters).filters
    (result,) = Path("cache").glob("filter-*/stage.json")
    written = result.stat().st_mtime_ns
    filter_texts(corpus, filters)
    assert result.stat().st_mtime_ns == written and count_results() == 1
    filter_texts(corpus, {"regex": {"drop": "x"}})
    assert count_results() == 2
    filter_texts(corpus, "overlap", news=other)
    filter_texts(corpus, "overlap", news=corpus.select(np.array([0]), "part"))
    assert count_results() == 4


@pytest.mark.parametrize(
    ("filters", "n_new"),
    [(["length", "duplicate"], 0), (["duplicate", "length", "overlap"], 1), (["near_overlap", "overlap"], 1)],
)
def test_only_filters_that_read_held_out_text_run_again_with_another_test_set(
    filters: list[str], n_new: int, write_corpus: WriteCorpus
) -> None:
    corpus, news, talks = (write_corpus([(name, name.upper())], name) for name in ("train", "news", "talks"))

    def find_results() -> set[Path]:
        return {*Path("cache").glob("filter-*/stage.json")}

    first = filter_texts(corpus, *filters, news=news)
    before = find_results()
    second = filter_texts(corpus, *filters, news=news, talks=talks)
    assert len(find_results() - before) == n_new and (first.key == second.key) == (n_new == 0)
    with pytest.raises(UserError, match="no pair of 1 is left") if n_new else nullcontext():
        filter_texts(corpus, *filters, same=corpus)


def test_cached_findings_are_not_those_of_another_filter(write_corpus: WriteCorpus) -> None:
    corpus = write_corpus([("a", "x"), ("a", "y")])
    for of, count in (("src", 1), ("tgt", 0)):
        check = CorpusCheck("repeated", "repeat", "", 0.0, filter=make_filter("duplicate", of=of))
        found = check_pairs(corpus, ("en", "de"), {}, (), Path("cache"), IN_PROCESS_RUNNER, [check])
        assert sum(finding.count for finding in found) == count


def test_result_does_not_depend_on_shards_and_blocks(
    write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [(f"word {i % 37} ", f"Wort {i % 23}") for i in range(200)]
    filters = {"regex": {"drop": "11"}}, {"duplicate": {"of": "src"}}, "normalize", "ratio", "near_duplicate"
    whole = filter_texts(write_corpus(pairs), *filters, cache="one")
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", 30)
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 7)
    found = filter_texts(
        load_corpus(Source(src=("t.en",), tgt=("t.de",)), "en", "de", Path("two")), *filters, cache="two"
    )
    assert len(found.shards) == 7
    assert [*found] == [*whole]
    assert [found.describe_line(row) for row in range(len(found))] == [
        whole.describe_line(row) for row in range(len(whole))
    ]
    assert [report.n_affected for report in found.filters] == [report.n_affected for report in whole.filters]


@pytest.mark.slow
def test_several_processes_filter_in_the_same_way(write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", 300)
    monkeypatch.setattr("transformer_mt.data.corpus.BLOCK_SIZE", 50)
    corpus = write_corpus([(f"word {i % 37} ", f"Wort {i % 23}") for i in range(2000)])
    names = "normalize", "ratio", {"duplicate": {"of": "src"}}, "language", "unrelated", "near_duplicate"
    filters = TypeAdapter(FilterList).validate_python([*names])
    found = [filter_corpus(corpus, filters, ("en", "de"), {}, Path(f"cache{n}"), LocalRunner(n)) for n in (1, 2)]
    assert ([*found[0]], found[0].filters) == ([*found[1]], found[1].filters)
    assert [report.n_affected for report in found[0].filters[:3]] == [2000, 0, 1963]


@pytest.mark.parametrize(("n_removed", "shard_pairs"), [(0, 2000), (100, 2000), (101, 2000), (1000, 2000), (300, 5)])
def test_examples_are_spread_over_the_corpus(
    n_removed: int, shard_pairs: int, write_corpus: WriteCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_mt.data.corpus.SHARD_PAIRS", shard_pairs)
    pairs = [("bad", str(i)) for i in range(n_removed)] + [("good", "x")]
    (report,) = filter_texts(write_corpus(pairs), {"regex": {"drop": "bad"}}).filters
    numbers = [int(example.tgt) for example in report.examples]
    assert report.n_affected == n_removed and min(n_removed, 51) <= len(numbers) <= 100
    assert all(b - a <= n_removed / 25 for a, b in pairwise([0, *numbers, n_removed]))


def test_empty_result_names_the_last_filter_that_removed_pairs(write_corpus: WriteCorpus) -> None:
    with pytest.raises(UserError) as caught:
        filter_texts(
            write_corpus([("a", "x"), ("b c", "y")]), {"regex": {"drop": "a"}}, {"length": {"min": 2}}, "normalize"
        )
    message = "no pair of 2 is left (removed: regex 1, length 1); loosen this filter or remove it"
    assert str(caught.value) == f"data.filters.length: {message}"


@pytest.mark.skipif(not MULTI30K.exists(), reason="needs Multi30k")
@pytest.mark.parametrize("language", ["de", "cs"])
def test_clean_text_loses_few_pairs_to_a_filter(language: str, workdir: Path) -> None:
    for name in ("en", language):
        lines = (MULTI30K / f"train.{name}").read_text(encoding="utf-8").splitlines(keepends=True)
        (workdir / f"t.{name}").write_text("".join(lines[:4000]), encoding="utf-8")
    corpus = load_corpus(Source(src=("t.en",), tgt=(f"t.{language}",)), "en", language, Path("cache"))
    filters = [name for name in FILTERS if name not in ("normalize", "overlap", "near_overlap", "regex", "column")]
    for report in filter_texts(corpus, *filters, tgt=language).filters:
        limit = 0.015 if report.name == "unrelated" else 0.002  # its lexicons know little after 4,000 pairs
        assert report.n_affected <= limit * report.n_seen, report
