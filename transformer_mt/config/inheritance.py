"""Configuration files that inherit from other files (`base: FILE`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformer_mt.config.section import expand_path
from transformer_mt.config.yaml_loader import KeyPath, Tree, read_yaml
from transformer_mt.errors import UserError


def read_inherited(path: Path, is_merged: Callable[[KeyPath], bool], descendants: tuple[Path, ...] = ()) -> Tree:
    """Read a file, and lay it over the files that it inherits from.

    `is_merged` tells whether a section is merged key by key. `descendants` are the files that inherit from this one.

    Raises:
        UserError: A file cannot be read, or the files inherit from each other in a circle.
    """
    files = (*descendants, path.resolve())
    if files[-1] in descendants:
        chain = " -> ".join(file.name for file in files)
        raise UserError(f"{path}: base: the files inherit from each other in a circle: {chain}")
    tree = read_yaml(path)
    base = tree.values.pop("base", None)
    if base is None:
        return tree
    where = tree.locate(("base",))
    if not isinstance(base, str):
        raise UserError(f"{where}: base: must be the name of one YAML file")
    try:
        inherited = read_inherited(path.parent / expand_path(base), is_merged, files)
    except ValueError as error:
        raise UserError(f"{where}: base: {error}") from None
    except UserError as error:
        raise UserError(f"{error}\n(inherited by {where})") from None
    inherited.values.pop("name", None)  # a run that inherits must not share the folder of its base
    return tree.merge_over(inherited, is_merged)
