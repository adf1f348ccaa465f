"""Runs of this user, and runs from elsewhere.

`config.yaml` names files to read and folders to write. A training signs these settings with a key that only its user
can read. A run without a valid signature is *foreign*: somebody else may have written it. It may read and write only
inside its own folder and the cache of the user who runs the command.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from transformer_mt.errors import UserError
from transformer_mt.system.files import walk

KEY_BYTES = 32
SIGNED_KEYS = ("runs_dir", "data", "tokenizer", "train.init_from", "decoding.glossary")
"""The settings that name files or folders. Others, such as `decoding.beam`, may be edited in `config.yaml`."""


def sign_settings(values: Mapping[str, Any]) -> str | None:
    """Return the signature of the settings in a configuration, or None if the user's key cannot be stored."""
    key = _read_key() or _make_key()
    return None if key is None else _compute_signature(key, values)


def is_signed(values: Mapping[str, Any], signature: object) -> bool:
    """Return whether the signature of the settings is that of this user."""
    key = _read_key()
    if key is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(_compute_signature(key, values).encode(), signature.encode())


def find_user_cache() -> Path:
    """Return the folder in which the data of foreign runs are cached."""
    return _find_user_folder("XDG_CACHE_HOME", ".cache")


def describe_outside_file(path: str, folder: Path) -> str | None:
    """Return why a foreign run in `folder` must not read a file, or None if it may."""
    try:
        file = Path(path).resolve()
        if not file.is_relative_to(folder.resolve()):
            return "is outside of its folder"
        if not stat.S_ISREG(file.stat().st_mode):
            return "is not a regular file"
    except (OSError, RuntimeError, ValueError):  # missing, or a circle of links
        return "cannot be read"
    return None


def refuse_special_files(folder: Path) -> None:
    """Raise `UserError` if a folder has a pipe or a device, which could be read without end."""
    for entry in walk(folder):
        with suppress(OSError):  # deleted meanwhile, or a link to nothing
            mode = entry.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UserError(f"{entry.path}: is a pipe or a device, not a regular file; remove it")


def _compute_signature(key: bytes, values: Mapping[str, Any]) -> str:
    settings: dict[str, Any] = {}
    for name in SIGNED_KEYS:
        section, _, key_name = name.partition(".")
        found = values.get(section)
        settings[name] = found if not key_name or not isinstance(found, dict) else cast(Any, found).get(key_name)
    return hmac.digest(key, json.dumps(settings, sort_keys=True).encode(), "sha256").hex()


def _find_user_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "")
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~")) / default) / "transformer-mt"  # noqa: PTH111, PTH117  (Path.home raises an error without a home folder)


def _key_path() -> Path:
    return _find_user_folder("XDG_CONFIG_HOME", ".config") / "run-key"


def _read_key() -> bytes | None:
    try:
        key = _key_path().read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def _make_key() -> bytes | None:
    """Store a new key, which only the user can read. Another process may store one first."""
    path = _key_path()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            os.link(temporary, path)  # fails if the file exists
        finally:
            temporary.unlink(missing_ok=True)
    return _read_key()
