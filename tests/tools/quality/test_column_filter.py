"""The filter `column`, which keeps pairs by a number in their table."""

from __future__ import annotations

from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import Config, load
from transformer_mt.flows.prepare import load_filtered

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
    with pytest.raises(UserError, match=rf"^t\.tsv:12: column score holds {shown} instead of a number"):
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
    with pytest.raises(UserError, match=r"^x\.yaml:6: data\.filters\.0\.column: needs tables"):
        configure("  - column: {name: score, min: 0.2}", "{src: t.en, tgt: t.de}")
