"""`tmt evaluate --metric-command`: an external metric, failures of its program, and wrong arguments."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import sacrebleu
from helpers import Tmt, assert_user_error

pytestmark = pytest.mark.usefixtures("few_samples")

SACREBLEU = f"""
cat > pairs; cut -f 2 pairs > hypotheses; cut -f 3 pairs > references
{shlex.quote(sys.executable)} -m sacrebleu references -i hypotheses -m chrf --sentence-level --score-only --width 10
"""
FILES = ("--src", "valid.en", "--ref", "valid.de")


@pytest.fixture
def folder(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the texts of the tiny run and two files of translations."""
    for path in tiny.glob("*.??"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    references = Path("valid.de").read_text(encoding="utf-8")
    Path("a.de").write_text(references.replace("n", "m"), encoding="utf-8")
    Path("b.de").write_text("".join(f"{line[2:]}\n" for line in references.splitlines()), encoding="utf-8")
    Path("chrf.sh").write_text(SACREBLEU)
    return tmp_path


def lines(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").split("\n")[:-1]


def chrf(name: str) -> list[float]:
    pairs = zip(lines(name), lines("valid.de"), strict=True)
    return [sacrebleu.sentence_chrf(text, [reference]).score for text, reference in pairs]


def python(code: str) -> str:
    """Return a command that runs Python code."""
    return shlex.join([sys.executable, "-c", f"import sys, time\nrows = sys.stdin.read().split('\\n')[:-1]\n{code}"])


# --- scores -----------------------------------------------------------------------------------------------------------


def test_the_mean_and_interval_of_the_sacrebleu_command_are_those_of_its_lines(
    folder: Path, tiny_run: Path, tmt: Tmt
) -> None:
    arguments = ("evaluate", tiny_run, *FILES, "--output", "out.de", "--metric-command", "sh chrf.sh")
    done = tmt(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["test_sets"]["valid.en"]["metrics"]
    assert list(found) == ["bleu", "chrf", "chrf++", "ter", "external"]
    scores = chrf("out.de")
    assert found["external"]["value"] == pytest.approx(fmean(scores), abs=1e-6)
    rows = np.random.default_rng(12345).choice(8, size=(100, 8), replace=True)
    means = sorted(np.array(scores)[rows].mean(1))
    assert found["external"]["interval"] == pytest.approx([means[2], means[-3]], abs=1e-4)
    assert "sh chrf.sh" in found["external"]["signature"]
    table = tmt(*arguments).stdout
    assert f"external  {fmean(scores):.4f}  {means[2]:.4f} to {means[-3]:.4f}  command:sh chrf.sh|system:mean" in table


def test_systems_are_compared_by_an_external_metric(folder: Path, tmt: Tmt) -> None:
    arguments = ("evaluate", "a.de", "b.de", *FILES, "--tgt-lang", "de", "--metric-command", "sh chrf.sh")
    found: dict[str, Any] = json.loads(tmt(*arguments, "--json").stdout)
    a, b = np.array(chrf("a.de")), np.array(chrf("b.de"))
    first, second = found["metrics"]["external"]["systems"]
    assert (first["score"], second["score"]) == pytest.approx((a.mean(), b.mean()), abs=1e-6)
    assert second["difference"] == pytest.approx((b - a).mean(), abs=1e-6)
    assert 0 < second["p_bootstrap"] <= 1 and 0 < second["p_randomisation"] <= 1
    total = sum(bucket["pairs"] * np.array(bucket["external_scores"]) for bucket in found["lengths"])
    assert total / 8 == pytest.approx([a.mean(), b.mean()])
    assert [sentence["external_scores"] for sentence in found["sentences"]] == [
        pytest.approx(sentence["chrf"], abs=1e-6) for sentence in found["sentences"]
    ]
    table = tmt(*arguments, "--show", 1).stdout
    assert f"B  {b.mean():.4f}  {(b - a).mean():+.4f}" in table
    largest = int(np.abs(b - a).argmax())
    assert f"line {largest + 1}\n" in table
    assert f"  A {a[largest]:8.2f} {a[largest]:9.4f}  {lines('a.de')[largest]}\n" in table


def test_sentences_are_ordered_by_the_external_metric(folder: Path, tmt: Tmt) -> None:
    fifth = lines("a.de")[4]
    command = python(f"for row in rows: print(int(row.split('\\t')[1] == {fifth!r}))")
    done = tmt("evaluate", "a.de", "b.de", *FILES, "--tgt-lang", "de", "--json", "--metric-command", command)
    assert [sentence["line"] for sentence in json.loads(done.stdout)["sentences"]] == [5]


def test_the_last_line_may_be_the_score_of_the_system(folder: Path, tmt: Tmt) -> None:
    command = python("for row in rows: print(row.count('e'))\nprint(len(rows) / 10)")
    arguments = ("--tgt-lang", "de", *FILES, "--system-score", "--metric-command", command)
    assert "no p of external: the program writes" in tmt("evaluate", "a.de", "b.de", *arguments).stdout
    arguments = (*arguments, "--json")
    found = json.loads(tmt("evaluate", "a.de", *arguments).stdout)["test_sets"]["valid.de"]["metrics"]["external"]
    assert (found["value"], found["interval"]) == (0.8, None)
    _, second = json.loads(tmt("evaluate", "a.de", "b.de", *arguments).stdout)["metrics"]["external"]["systems"]
    assert second == {"score": 0.8, "interval": None, "difference": 0, "p_bootstrap": None, "p_randomisation": None}


def test_a_program_reads_one_line_for_each_translation(folder: Path, tmt: Tmt) -> None:
    """Tabs and line breaks inside a text are replaced by spaces."""
    Path("source").write_text("a\tb\u2028c\n\n", encoding="utf-8")
    Path("target").write_text("d\x85e\nf\n", encoding="utf-8")
    count = "for row in rows: print(len(row.splitlines()) + len(row.split('\\t')) / 10)"
    command = python(f"{count}\nassert rows[0] == 'a b c\\td e\\td e'")
    done = tmt(
        "evaluate", "target", "--src", "source", "--ref", "target", "--tgt-lang", "de", "--metric-command", command
    )
    assert "external  1.3000 " in done.stdout, done.stderr


# --- failures ---------------------------------------------------------------------------------------------------------

FAILURES = {
    "sys.exit(3)": "exit status 3",
    "print(1)": "writes 1 lines, not 8",
    "for _ in range(9): print(1)": "writes 9 lines, not 8",
    "for i in range(8): print(i if i < 5 else 'five')": 'line 6 of its output is no number: "five"',
    "for i in range(8): print('nan')": "line 1 of its output is no number",
    "time.sleep(60)": "0.5 s",
    "import subprocess; subprocess.Popen(['sleep', '60'])": "0.5 s",
}


@pytest.mark.parametrize("code", FAILURES)
def test_the_other_scores_are_kept_if_the_program_fails(code: str, folder: Path, tmt: Tmt) -> None:
    options = ("--tgt-lang", "de", *FILES, "--metric-timeout", 0.5 if "sleep" in code else 60)
    start = time.monotonic()
    for systems in (["a.de"], ["a.de", "b.de"]):
        done = tmt("evaluate", *systems, *options, "--metric-command", python(code), "--json")
        assert_user_error(done, FAILURES[code], "a.de")
        plain = json.loads(tmt("evaluate", *systems, *FILES[2:], "--tgt-lang", "de", "--json").stdout)
        found = json.loads(done.stdout)
        key = "metrics" if "metrics" in plain else "test_sets"
        assert found[key] == plain[key]
    assert time.monotonic() - start < 30


def test_ctrl_c_ends_the_program(folder: Path) -> None:
    Path("hang.sh").write_text("echo $$ > pid.part; mv pid.part pid; exec sleep 600")
    command = [sys.executable, "-m", "transformer_mt", "evaluate", "a.de", *FILES, "--tgt-lang", "de", "--json"]
    with subprocess.Popen([*command, "--metric-command", "sh hang.sh"], stderr=subprocess.PIPE) as process:
        while not Path("pid").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in messages
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path("pid").read_text()), 0)


WRONG: dict[tuple[str, ...], str] = {
    ("--metric-command", "no-such-program"): "no-such-program",
    ("--metric-command", ""): "--metric-command",
    ("--metric-command", "sh 'x"): "sh 'x",
    ("--system-score",): "--system-score",
    ("--metric-timeout", "3"): "--metric-timeout",
    ("--metric-command", "cat", "--metric-timeout", "0"): "--metric-timeout",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_wrong_arguments_are_refused_before_a_run_translates(
    arguments: tuple[str, ...], folder: Path, tiny_run: Path, tmt: Tmt
) -> None:
    done = tmt("evaluate", tiny_run, *FILES, "--output", "out.de", *arguments)
    assert_user_error(done, WRONG[arguments])
    assert (done.stdout, Path("out.de").exists()) == ("", False)


def test_a_file_needs_its_sources(folder: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("evaluate", "a.de", "--ref", "valid.de", "--metric-command", "sh chrf.sh"), "--src")
    assert_user_error(tmt("evaluate", "a.de", *FILES), "--src")
