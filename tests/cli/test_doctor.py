"""`tmt doctor`: the report, its JSON, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Tmt

import transformer_mt
from transformer_mt.cli import doctor
from transformer_mt.cli import doctor as self_test
from transformer_mt.cli.doctor import Check, SelfTestResult
from transformer_mt.system.log import Severity


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Change to an empty folder, and leave out the checks that take seconds."""
    monkeypatch.chdir(tmp_path)
    packages = [Check("packages", "python", Severity.OK, "3")]
    monkeypatch.setattr(doctor, "check_packages", lambda: iter(packages))
    monkeypatch.setattr(doctor, "check_devices", lambda _: iter(()))  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(doctor, "describe_environment", lambda: "PyTorch version: 2")
    monkeypatch.setattr(self_test, "learn_to_reverse", lambda *_: SelfTestResult(150, 0.2, 1.0, 5.0))


@pytest.mark.usefixtures("fast")
def test_a_machine_without_problems_has_status_0(tmt: Tmt) -> None:
    done = tmt("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[0] == f"tmt {transformer_mt.__version__}"
    *_, self_test, _, environment, summary = done.stdout.splitlines()
    assert environment == "  PyTorch version: 2"
    assert "a tiny model learns: 100% of new digit sequences reversed after 150 steps" in self_test
    assert summary == "no problems found"


@pytest.mark.usefixtures("fast")
def test_slow_training_is_a_warning_and_failed_training_an_error(tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    for loss, status, word in ((2.0, 1, "warning"), (float("nan"), 2, "error")):
        monkeypatch.setattr(self_test, "learn_to_reverse", lambda *_, loss=loss: SelfTestResult(9, loss, 0.0, 50.0))
        done = tmt("doctor")
        assert done.returncode == status
        assert f"  {word:<8} self-test" in done.stdout
        assert done.stdout.endswith("see: self-test\n")


@pytest.mark.usefixtures("fast")
def test_without_write_access_the_status_is_2_without_a_traceback(tmt: Tmt) -> None:
    Path("runs").touch()
    done = tmt("doctor")
    assert (done.returncode, done.stderr) == (2, "")
    assert f"error    write access  {Path.cwd()}/runs: cannot be written" in done.stdout


@pytest.mark.usefixtures("fast")
def test_a_missing_package_ends_the_checks(tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_packages() -> Iterator[Check]:
        yield Check("packages", "torch", Severity.ERROR, "is not installed")

    monkeypatch.setattr(doctor, "check_packages", check_packages)
    done = tmt("doctor", "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["severity"] == "error"
    assert [check["name"] for check in report["checks"]] == ["torch", "self-test"]
