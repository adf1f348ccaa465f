"""Checks of `tmt doctor`: each fault is a severity and one sentence."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from transformer_mt.cli import doctor as diagnostics
from transformer_mt.system.device import resolve_machine
from transformer_mt.system.log import Severity


def test_a_missing_package_is_an_error_and_an_old_one_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["tqdm>=4", "pyyaml>=999", "no-such-package>=1", 'no-such-extra>=1; extra == "more"']
    monkeypatch.setattr(metadata, "requires", lambda _: requirements)
    monkeypatch.setattr(metadata, "metadata", lambda _: _Extras())
    found = {check.name: check for check in diagnostics.check_packages()}
    assert found["tqdm"].severity == Severity.OK
    assert found["pyyaml"].severity == Severity.WARNING
    assert found["pyyaml"].value == f"{metadata.version('pyyaml')} is not >=999; pip install 'pyyaml>=999'"
    assert found["no-such-package"][2:] == (Severity.ERROR, "is not installed; pip install 'no-such-package>=1'")
    assert found["no-such-extra"][2:] == (Severity.OK, "not installed; it is optional")


class _Extras:
    def get_all(self, _: str) -> list[str]:
        return ["more", "dev"]


def test_a_folder_without_write_access_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    space, access = diagnostics.check_disk(runs / "later")
    assert (space.severity, access.severity) == (Severity.OK, Severity.OK)
    assert not list(tmp_path.iterdir())
    runs.touch()
    *_, access = diagnostics.check_disk(runs)
    assert access.severity == Severity.ERROR
    assert access.value.startswith(f"{runs}: cannot be written (Not a directory); ")


def test_little_free_space_is_a_warning_and_a_full_disk_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "LOW_DISK", 10**18)
    assert next(diagnostics.check_disk(tmp_path)).severity == Severity.WARNING
    monkeypatch.setattr(diagnostics, "FULL_DISK", 10**18)
    assert next(diagnostics.check_disk(tmp_path)).severity == Severity.ERROR


def test_an_exception_in_a_check_becomes_a_sentence() -> None:
    def check() -> str:
        raise RuntimeError("first line\nlast line")

    found = diagnostics.run_check("torch", "gloo", check, Severity.WARNING)
    assert found[2:] == (Severity.WARNING, "RuntimeError: last line")


def test_a_distribution_whose_module_has_another_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda _: ["pyyaml>=1", "markdown-it-py>=1"])
    monkeypatch.setattr(metadata, "metadata", lambda _: _Extras())
    assert {check.severity for check in diagnostics.check_packages()} == {Severity.OK}


def test_devices_are_checked_without_a_problem_and_the_environment_names_torch() -> None:
    found = [*diagnostics.check_devices(resolve_machine("cpu", "fp32", 1))]
    assert {check.severity for check in found} == {Severity.OK}
    assert "PyTorch version" in diagnostics.describe_environment()
