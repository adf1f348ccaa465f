"""`tmt evaluate` with several systems: runs and files, the printed report, and wrong arguments."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from helpers import Tmt, assert_user_error, load_plain

from transformer_mt.evaluation.metrics import NO_TER, Scorer
from transformer_mt.tools.analysis.significance import score_systems

pytestmark = pytest.mark.usefixtures("few_samples")


@pytest.fixture
def workspace(tiny: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a copy of the tiny run's folder, with two files of translations and some unusable files."""
    folder = shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(folder)
    references = Path("valid.de").read_text(encoding="utf-8")
    Path("a.de").write_text(references.replace("vier", "fünf"), encoding="utf-8")
    Path("b.de").write_text(re.sub("(?m) .*$", "", references), encoding="utf-8")
    Path("short").write_text("eins\n", encoding="utf-8")
    Path("folder").mkdir()
    return folder


def lines(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").split("\n")[:-1]


def parse_json(done: CompletedProcess[str]) -> dict[str, Any]:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def test_two_files_are_compared(workspace: Path, tmt: Tmt) -> None:
    done = tmt("evaluate", "a.de", "b.de", "--ref", "valid.de", "--show", 2)
    assert (done.returncode, done.stderr) == (0, "")
    expected = score_systems([lines("a.de"), lines("b.de")], lines("valid.de"), Scorer("13a", ""))
    for name, comparison in expected.items():
        a, b = comparison.systems
        assert re.search(rf"^{re.escape(name)} +A +{a.score:.2f}\n", done.stdout, re.MULTILINE)
        p = f"{b.p_bootstrap:.4f}"
        assert re.search(rf"^ +B +{b.score:.2f} +{re.escape(f'{b.difference:+.2f}')} +{p}$", done.stdout, re.MULTILINE)
        assert comparison.signature in done.stdout
    assert done.stdout.startswith("A  a.de\nB  b.de\n\n8 pairs; ")
    assert len(re.findall("^line ", done.stdout, re.MULTILINE)) == 2
    assert "source" not in done.stdout


def test_a_run_is_compared_with_a_file(workspace: Path, tmt: Tmt) -> None:
    files = ("--src", "valid.en", "--ref", "valid.de", "--json", "--beam", 2)
    one = parse_json(tmt("evaluate", "runs/tiny", "a.de", *files))
    hypotheses = load_plain("runs/tiny", beam=2).translate(lines("valid.en"))
    expected = score_systems([hypotheses, lines("a.de")], lines("valid.de"), Scorer("13a", "de"))
    assert one["systems"] == {"A": "runs/tiny (beam 2, step 12, torch)", "B": "a.de"}
    assert one["pairs"] == 8
    for name, comparison in expected.items():
        for ours, theirs in zip(one["metrics"][name]["systems"], comparison.systems, strict=True):
            assert ours["score"] == theirs.score
            assert ours["p_bootstrap"] == theirs.p_bootstrap
    assert len(one["sentences"]) == 5
    assert one["sentences"][0]["source"] in lines("valid.en")


def test_a_system_that_is_named_twice_has_no_difference(workspace: Path, tmt: Tmt) -> None:
    one = parse_json(tmt("evaluate", "a.de", "b.de", "a.de", "--ref", "valid.de", "--json", "--show", 0))
    assert list(one["systems"].values()) == ["a.de", "b.de", "a.de"]
    for comparison in one["metrics"].values():
        first, _, third = comparison["systems"]
        assert (third["score"], third["difference"], third["p_bootstrap"]) == (first["score"], 0, 1)
    assert one["sentences"] == []


def test_the_target_language_sets_the_tokenizer(workspace: Path, tmt: Tmt) -> None:
    one = parse_json(tmt("evaluate", "a.de", "b.de", "--ref", "valid.de", "--json", "--tgt-lang", "ja"))
    assert "|tok:char|" in one["metrics"]["BLEU"]["signature"]
    assert "|norm:yes|" in one["metrics"]["TER"]["signature"]
    done = tmt("evaluate", "a.de", "b.de", "--ref", "valid.de", "--tgt-lang", "th", "--show", 0)
    assert NO_TER in done.stdout.split("\n") and "\nTER   " not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a.de nope --ref valid.de", "nope: no such file and no such run folder"),
        ("a.de runs/tiny --ref valid.de --src valid.en --output f", "several systems are compared; leave out --output"),
        ("a.de b.de --ref valid.de --src short", "valid.de has 8 lines, short has 1 lines"),
        ("a.de runs/tiny --ref valid.de", "--src and --ref go together"),
        ("a.de b.de --ref valid.de --length-penalty 2 --device cpu", "leave out --device, --length-penalty"),
    ],
)
def test_wrong_arguments_are_refused(words: str, message: str, workspace: Path, tmt: Tmt) -> None:
    done = tmt("evaluate", *words.split())
    assert_user_error(done, message)
    assert done.stdout == ""


def test_runs_with_different_scoring_are_refused(workspace: Path, tmt: Tmt) -> None:
    shutil.copytree("runs/tiny", "runs/other")
    text = Path("runs/other/config.yaml").read_text(encoding="utf-8")
    Path("runs/other/config.yaml").write_text(text.replace("tgt_lang: de", "tgt_lang: fr"), encoding="utf-8")
    done = tmt("evaluate", "runs/tiny", "runs/other", "--src", "valid.en", "--ref", "valid.de")
    assert_user_error(done, "runs/other: ", "tgt_lang")
