"""`tmt doctor`: its checks, the report, its JSON, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from helpers import Tmt

import transformer_mt
from transformer_mt.flows import doctor
from transformer_mt.flows.doctor import Outcome
from transformer_mt.system.log import Severity


def test_a_missing_package_is_an_error_and_an_old_one_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["tqdm>=4", "pyyaml>=999", "no-such-package>=1"]
    extras = ['no-such-extra>=1; extra == "more"', 'no-such-tool>=1; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda _: [*requirements, *extras])
    _, *found = doctor.check_packages()
    ok, warning, error = Severity.OK, Severity.WARNING, Severity.ERROR
    expected = [("tqdm", ok), ("pyyaml", warning), ("no-such-package", error), ("no-such-extra", ok)]
    assert [(name, severity) for name, severity, _ in found] == expected
    assert found[1][2].endswith("pip install 'pyyaml>=999'")
    assert found[2][2].endswith("pip install 'no-such-package>=1'")


def test_a_folder_without_write_access_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [severity for _, severity, _ in doctor.check_disk()] == [Severity.OK, Severity.OK]
    assert not list(tmp_path.iterdir())
    Path("runs").touch()
    *_, (_, severity, value) = doctor.check_disk()
    assert severity == Severity.ERROR
    assert value.startswith(f"{tmp_path}/runs: cannot be written (Not a directory); ")


def test_a_training_that_fails_or_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SELF_TEST_SECONDS", 0.01)
    assert [severity for _, severity, _ in doctor.check_training()] == [Severity.WARNING]
    monkeypatch.setattr(doctor, "SELF_TEST_SECONDS", 100.0)
    monkeypatch.setattr(doctor, "SELF_TEST", ("model.d_model=7",))
    ((_, severity, value),) = doctor.check_training()
    assert severity == Severity.ERROR and "model" in value


@pytest.mark.slow
def test_a_small_model_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((_, severity, value),) = doctor.check_training()
    assert severity == Severity.OK, value
    assert not list(tmp_path.iterdir())


def report(*severities: Severity, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the checks by one with a line for each severity, and the environment by one line."""

    def check() -> Iterator[Outcome]:
        yield from ((f"check {number}", severity, "a value") for number, severity in enumerate(severities))

    monkeypatch.setattr(doctor, "DIAGNOSTICS", {"packages": check, "disk": check})
    monkeypatch.setattr(doctor, "describe_environment", lambda: "PyTorch version: 2")


@pytest.mark.parametrize("severity", Severity)
def test_the_status_is_the_highest_severity(severity: Severity, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    report(Severity.OK, severity, monkeypatch=monkeypatch)
    done = tmt("doctor")
    assert (done.returncode, done.stderr) == (severity, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"tmt {transformer_mt.__version__}"
    assert "  ok       check 0       a value" in lines
    assert severity == Severity.OK or "check 1" in lines[-1]


def test_a_missing_package_ends_the_checks(tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    report(Severity.ERROR, monkeypatch=monkeypatch)
    done = tmt("doctor", "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["severity"] == "error"
    assert [check["group"] for check in found["checks"]] == ["packages"]


def test_an_exception_in_a_check_is_an_error_in_one_sentence(tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> Iterator[Outcome]:
        raise RuntimeError("first line\nlast line")

    report(monkeypatch=monkeypatch)
    monkeypatch.setattr(doctor, "DIAGNOSTICS", {"devices": check})
    done = tmt("doctor")
    assert done.returncode == 2
    assert "RuntimeError: last line" in done.stdout
