"""Candidates for synthetic pairs, their filters, the text files, and the configuration that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from transformer_mt.data.data_config import DataConfig
from transformer_mt.decoding.text_stages import PlainText, Translation
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.synthesis.synthetic_data import (
    Candidate,
    CandidateMaker,
    PairCounts,
    Synthesis,
    check_text,
    read_candidates,
    render_training_data,
    write_pairs,
)

BACK = Synthesis("back", "de", "en")
FORWARD = Synthesis("forward", "en", "de")
GERMAN = [
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Zwei Männer stehen am Herd und bereiten Essen zu.",
    "Ein Hund läuft durch den Schnee und hat einen Ball im Maul.",
]


class FakeTranslator:
    """Looks translations up. A token is a word."""

    def __init__(self, table: dict[str, str], unfinished: Sequence[str] = ()) -> None:
        self.table, self.unfinished = table, unfinished
        self.line_numbers: list[int] = []
        self.tokenizers = SimpleNamespace(src=SimpleNamespace(encode=lambda texts: [text.split() for text in texts]))

    def n_best(self, texts: Sequence[str], *, line_numbers: Sequence[int], n_best: int) -> list[list[Translation]]:
        assert n_best == 1
        self.line_numbers += line_numbers
        return [
            [Translation(PlainText(self.table[text]), -1.0, [], [], finished=text not in self.unfinished)]
            for text in texts
        ]


def test_bad_translations_are_dropped_with_their_reason() -> None:
    table = {"gut": "good", "leer": " ", "endlos": "no end", "schleife": "a b " * 20}
    fake = FakeTranslator(table, unfinished=["endlos"])
    texts = ["gut", "", " \t", "leer", "endlos", "schleife", "eins zwei drei vier fünf sechs sieben"]
    found = CandidateMaker(cast(Translator, fake), 6).make(texts, 101)
    assert [candidate.text for candidate in found] == texts
    reasons = [candidate.drop_reason for candidate in found]
    assert reasons == [None, "blank", "blank", "empty", "unfinished", "repetitive", "too_long"]
    assert fake.line_numbers == [101, 104, 105, 106]  # bad lines are not translated


@pytest.mark.parametrize(("synthesis", "src"), [(BACK, "b"), (FORWARD, "a")])
def test_both_files_have_the_kept_pairs_line_by_line(synthesis: Synthesis, src: str, tmp_path: Path) -> None:
    candidates = [Candidate(f"a{n} \u2028 \r x", f"b{n}", "empty" if n % 2 else None) for n in range(5)]
    path = tmp_path / "candidates"
    path.write_text("".join(each.to_json() for each in candidates), encoding="utf-8")
    assert [*read_candidates(path)] == candidates
    assert write_pairs(path, synthesis, tmp_path) == PairCounts(5, 3, {"empty": 2})
    columns = {"a": "".join(f"a{n} \u2028 \r x\n" for n in (0, 2, 4)), "b": "b0\nb2\nb4\n"}
    assert synthesis.languages == ("en", "de")
    assert (tmp_path / "train.en").read_bytes().decode() == columns.pop(src)
    assert (tmp_path / "train.de").read_bytes().decode() == columns.popitem()[1]


# --- languages --------------------------------------------------------------------------------------------------------


def check(path: Path, src_lang: str, tgt_lang: str, any_language: bool = False) -> None:
    check_text(path, Path("runs/x"), (src_lang, tgt_lang), "strict", any_language=any_language)


def test_text_in_another_language_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mono"
    path.write_text("\n".join(GERMAN), encoding="utf-8")
    check(path, "de", "en")
    check(path, "tlh", "en")  # a language that the detector does not know
    with pytest.raises(UserError, match=r"mono: the text seems to be in de, .*\n.*other direction, de to en"):
        check(path, "en", "de")
    with pytest.raises(UserError, match="a run that translates from de"):
        check(path, "fr", "en")
    check(path, "fr", "en", any_language=True)


# --- the configuration of the next training ---------------------------------------------------------------------------


def rendered(synthesis: Synthesis, monkeypatch: pytest.MonkeyPatch, **data: Any) -> dict[str, Any]:
    """Return the parsed YAML for a run with this `data`, after it was checked as a configuration."""
    old = DataConfig.model_validate(data)
    monkeypatch.setattr(RunFolder, "read_section", lambda *_: old)
    found = yaml.safe_load(render_training_data(RunFolder(Path("runs/x")), synthesis, Path("new")))["data"]
    DataConfig.model_validate(found)
    return found


NEW = {"name": "synthetic", "src": "new/train.en", "tgt": "new/train.de"}


def test_the_pairs_of_the_run_are_used_in_the_new_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    train: dict[str, Any] = {"src": "t.de", "tgt": "t.en"}
    found = rendered(BACK, monkeypatch, src_lang="de", tgt_lang="en", train=train)
    real = {"name": "parallel", "src": ["t.en"], "tgt": ["t.de"]}
    assert found == {"src_lang": "en", "tgt_lang": "de", "train": [real, NEW]}
    train = {"table": "t.tsv", "src_column": "one", "tgt_column": "two"}
    found = rendered(BACK, monkeypatch, src_lang="de", tgt_lang="en", train=train)
    assert found["train"][0] == {"name": "parallel", "table": ["t.tsv"], "src_column": "two", "tgt_column": "one"}
    found = rendered(FORWARD, monkeypatch, src_lang="en", tgt_lang="de", train={"src": "t.en", "tgt": "t.de"})
    assert found["train"] == [{"name": "parallel", "src": ["t.en"], "tgt": ["t.de"]}, NEW]


def test_sources_keep_their_names_and_lose_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    train = [{"name": name, "src": "s", "tgt": "t", "weight": 2} for name in ("web", "synthetic")]
    found = rendered(FORWARD, monkeypatch, src_lang="en", tgt_lang="de", train=train)["train"]
    assert [source["name"] for source in found] == ["web", "synthetic", "synthetic-2"]
    assert not any("weight" in source for source in found)


def test_the_pairs_of_a_run_with_tags_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train = {"src": "s", "tgt": "t", "tag": "2de"}
    assert rendered(FORWARD, monkeypatch, src_lang="en", tgt_lang="de", train=train)["train"] == [NEW]
