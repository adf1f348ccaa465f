"""Sources whose content cannot be read, and the message that names the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from transformer_mt.data.corpus import load_corpus
from transformer_mt.data.sources import Source
from transformer_mt.errors import UserError


def read_locations(tmp_path: Path, **source: Any) -> list[str]:
    corpus = load_corpus(Source(**source), "en", "de", tmp_path / "cache")
    return [corpus.describe_line(row) for row in range(len(corpus))]


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"en": "a", "de": "\\ud800"}\n', r"t.jsonl:1: "), ("[" * 100_000 + "\n", r"t.jsonl:1: not valid JSON")],
    ids=["lone surrogate", "deep nesting"],
)
def test_unreadable_json_is_refused_with_its_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(UserError, match=message):
        read_locations(tmp_path, table=str(tmp_path / "t.jsonl"))


def test_a_csv_row_of_several_lines_is_named_by_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b'en,de\na,"b\n\nc"\nd,e\n')
    assert read_locations(tmp_path, table=str(tmp_path / "t.csv")) == [f"{tmp_path}/t.csv:2", f"{tmp_path}/t.csv:5"]


def test_a_saved_data_set_without_splits_refuses_a_split(tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{"en": "a", "de": "b"}]).save_to_disk(tmp_path / "one")
    with pytest.raises(UserError, match=r"split"):
        read_locations(tmp_path, dataset=str(tmp_path / "one"), split="test")


def test_a_data_set_that_cannot_be_loaded_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text("not json\n")
    with pytest.raises(UserError, match="JSON"):
        read_locations(tmp_path, dataset=str(tmp_path / "files"))
