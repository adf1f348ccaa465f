"""`tmt check` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import Tmt

from transformer_mt.data import sources as quickstart


def replace_line(folder: Path, line: int, text: str) -> None:
    path = folder / "train.en"
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[line - 1] = text
    path.write_text("\n".join(lines), encoding="utf-8")


def test_findings_are_printed_with_examples_and_remedies(run_copy: Path, tmt: Tmt) -> None:
    replace_line(Path.cwd(), 7, "<b>one</b> two three")
    printed = tmt("check", "tiny.yaml").stdout
    assert "sentence pairs: 50 in train, 8 in validation, 6 in unseen" in printed
    shown = printed.partition("\ncontent: html\n")[2].split("\n")
    assert "regex: {drop: " in shown[0] and shown[1] == "  train.en:7  source"


def test_the_exit_status_is_the_highest_severity(run_copy: Path, tmt: Tmt) -> None:
    done = tmt("check", "tiny.yaml", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == {"info": 0, "warning": 1, "error": 2}[report["severity"]]
    for line in range(1, 30):
        replace_line(Path.cwd(), line, "")
    report = tmt("check", "tiny.yaml", "--json")
    assert report.returncode == 2
    empty = next(f for f in json.loads(report.stdout)["findings"] if f["name"] == "empty")
    assert (empty["severity"], empty["count"], empty["total"]) == ("error", 29, 50)
    assert empty["examples"][0]["location"] == "train.en:1"


def test_the_verdict_names_the_next_command(run_copy: Path, tmt: Tmt) -> None:
    """The severity comes from --json. A run is trained already, so that nothing is planned."""
    severity = json.loads(tmt("check", "tiny.yaml", "--json").stdout)["severity"]
    printed = tmt("check", "tiny.yaml", "data.max_length=200").stdout
    assert "\nverdict: ready to train" in printed
    assert ("tmt check tiny.yaml data.max_length=200 --write FOLDER" in printed) == (severity == "warning")
    assert "tmt plan tiny.yaml data.max_length=200" in printed
    assert "tmt plan" not in tmt("check", run_copy).stdout
    for line in range(1, 30):
        replace_line(Path.cwd(), line, "")
    verdict = tmt("check", "tiny.yaml").stdout.partition("\nverdict: ")[2]
    assert verdict.startswith("not ready to train: repair the errors")
    assert "tmt check tiny.yaml --write FOLDER" in verdict and "tmt plan" not in verdict


def test_a_repair_is_proposed_only_if_it_can_help(tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [(f"{src[:-1]} .", f"{tgt[:-1]} .") for src, tgt in quickstart.load_pairs("train")[:300]]
    Path("x.yaml").write_text("data: {src_lang: en, tgt_lang: de, train: {src: a.en, tgt: a.de}}", encoding="utf-8")
    for n_empty in (0, 10):
        for side, language in enumerate(("en", "de")):
            lines = [pair[side] for pair in pairs[n_empty:]] + n_empty * [""]
            Path(f"a.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        done = tmt("check", "x.yaml")
        assert done.returncode == 1 and "tokenized" in done.stdout
        assert ("--write" in done.stdout) == (n_empty > 0)


def test_wrong_languages_come_with_no_repair_command(tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = quickstart.load_pairs("train")[:300]
    for side, language in enumerate(("en", "de")):
        Path(f"a.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    Path("x.yaml").write_text("data: {src_lang: fr, tgt_lang: de, train: {src: a.en, tgt: a.de}}", encoding="utf-8")
    done = tmt("check", "x.yaml")
    verdict = done.stdout.partition("\nverdict: ")[2]
    assert done.returncode == 2 and "correct" in done.stdout
    assert "swap or correct them" in verdict and "--write" not in verdict
