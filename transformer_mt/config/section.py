"""Base class and field types of configuration sections, and the wording of validation errors."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import os.path
import re
import sys
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import regex
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

MAX_SHOWN = 200  # characters of a wrong value in a message


class Section(BaseModel):
    """One section of the configuration: frozen, without unknown keys.

    The docstring of a key becomes its comment in configs/reference.yaml and its description in the JSON schema.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for key, text in key_docstrings(cls).items():
            properties[key]["description"] = text
        return schema


def key_docstrings(section: type[Section]) -> dict[str, str]:
    """Return the docstrings of the keys of a section.

    They are read from the source code, because pydantic would read them at every import, which takes longer.
    """
    docstrings: dict[str, str] = {}
    for base in reversed([base for base in section.__mro__ if issubclass(base, Section)]):
        for key, docstring in pairwise(_class_bodies(base.__module__).get(base.__name__, ())):
            if isinstance(key, ast.AnnAssign) and isinstance(docstring, ast.Expr):
                docstrings[ast.unparse(key.target)] = inspect.cleandoc(ast.literal_eval(docstring.value))
    return {key: docstrings[key] for key in section.model_fields if key in docstrings}


@cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


class MayChange:
    """Marker of a key that may change when a run resumes.

    It does not affect the weights, except that `device`, `threads` and `compile` change their last bits.
    """


MAY_CHANGE = MayChange()


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text has a lone surrogate, which UTF-8 cannot encode. Escapes of JSON and YAML can make one."""
    return re.search("[\ud800-\udfff]", text) is not None


# --- field types ------------------------------------------------------------------------------------------------------


def expand_path(path: str) -> str:
    """Expand a leading `~`. Raises `ValueError` for a zero byte or an environment variable."""
    if "\0" in path:
        raise ValueError("a path cannot contain a zero byte")
    if variable := re.search(r"\$([A-Za-z_]\w*|\{[^}/]*\})", path):
        raise ValueError(f"{variable[0]}: environment variables are not expanded; write the path, or start it with ~/")
    return os.path.expanduser(path)  # noqa: PTH111


PathName = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value),  # from Python
    AfterValidator(expand_path),
]
"""Path of a file or folder. A leading `~` is the home folder."""


def parse_count_or_auto(value: object) -> Literal["auto"] | int:
    """Parse a positive integer or `auto`. Raises `ValueError` for anything else."""
    if value == "auto":
        return "auto"
    if not re.fullmatch("[1-9][0-9]*", str(value)):
        raise ValueError(f'"{value}" is neither a positive integer nor auto')
    return int(str(value))


CountOrAuto = Annotated[
    Literal["auto"] | int,
    BeforeValidator(parse_count_or_auto),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
]
"""Positive integer, or `auto` to let the program choose."""


def _check_pattern(pattern: str) -> str:
    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"{pattern}: is not a regular expression ({error})") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""Regular expression of the package `regex`."""

_FOLDER = re.compile(r"[^/\s.\x00]([^/\n\x00]*[^/\s\x00])?")


def check_folder_name(value: str) -> str:
    """Return the name. Raises `ValueError` if it cannot be that of one folder."""
    if has_lone_surrogate(value):
        raise ValueError(f'"{value}" is not UTF-8 text; choose another name')
    if not _FOLDER.fullmatch(value):
        raise ValueError(
            f'"{value}" cannot be the name of a folder: use no slash, no leading dot or space, and no trailing space'
        )
    return value


FolderName = Annotated[
    str, AfterValidator(check_folder_name), WithJsonSchema({"type": "string", "pattern": f"^{_FOLDER.pattern}$"})
]
"""Name of one folder, without its parents."""


# --- errors -----------------------------------------------------------------------------------------------------------


def section_error(key: str, message: str) -> PydanticCustomError:
    """Make the error that a section's validator raises about one of its keys (`key`, or `subsection.key`)."""
    return PydanticCustomError("section_error", "{message}", {"key": key, "message": message})


def list_error_keys(detail: dict[str, Any]) -> tuple[str | int, ...]:
    """Return the keys that a `section_error` names, below the section that pydantic reports."""
    keys = detail["ctx"]["key"].split(".") if detail["type"] == "section_error" else ()
    return tuple(int(key) if key.isdigit() else key for key in keys if key)


class RemovedKey(NamedTuple):
    """A key, value or list item that earlier versions accepted."""

    message: str
    default: str | None = None
    """The value that had no effect, as `config.yaml` writes it. Null and empty values never had one."""
    refuses_run: bool = False
    """Refuse a run in which this key was in effect."""


_NO_BENEFIT = "was removed, because no benefit was measured: delete this key"
_NO_SECOND_PASS = (
    "was removed, because R-Drop lost 0.76 BLEU and SimCut 3.38: delete this key, and raise model.dropout instead"
)

REMOVED = {
    **dict.fromkeys(
        ["data.filters=score", "data.filters=command"],
        RemovedKey(
            "this filter was removed: write the scores into a column of a table (paste), and use column: {name, min, "
            "max}"
        ),
    ),
    **dict.fromkeys(
        ["model.layer_drop", "model.encoder.layer_drop", "model.decoder.layer_drop"],
        RemovedKey(f"{_NO_BENEFIT}, and raise model.dropout instead", "0.0"),
    ),
    **dict.fromkeys(
        ["model.encoder.dropout", "model.decoder.dropout"],
        RemovedKey("was removed: delete this key, and set model.dropout, which holds for both stacks"),
    ),
    "model.norm_position=sublayer": RemovedKey(
        "was removed, because no benefit was measured: choose pre; a run that was trained with it needs version 0.2.0"
    ),
    **dict.fromkeys(
        ["model.qk_norm", "model.embedding_norm"],
        RemovedKey(_NO_BENEFIT, "false", refuses_run=True),
    ),
    "data.stages": RemovedKey(
        f"{_NO_BENEFIT}; to train with other weights later, start a second run from the weights of the first with "
        "train.init_from"
    ),
    **dict.fromkeys(
        [
            f"data.{source}.{key}"
            for source in ("train", "train.*", "validation", "validation.*", "test.*")
            for key in ("url", "sha256", "license")
        ],
        RemovedKey("was removed: download the file, for example with curl or mtdata, and name it as table"),
    ),
    **dict.fromkeys(
        [f"data.{source}.reverse" for source in ("train", "train.*", "validation", "validation.*", "test.*")],
        RemovedKey(
            "was removed: delete this key, swap src and tgt, and set the languages of the source",
            "false",
            refuses_run=True,
        ),
    ),
    "data.train.*.repeat": RemovedKey("was removed: delete this key, and give each source a weight", "1"),
    **dict.fromkeys(
        ["validation.expect", "validation.expect_all"],
        RemovedKey(
            "behaviour tests were removed: delete this key; the scores of each source in a list data.validation are "
            "logged",
            "false",
        ),
    ),
    "validation.metric=expect": RemovedKey("was removed with the behaviour tests: choose chrf++, or another metric"),
    "decoding.markup=align": RemovedKey("was removed: choose auto, which does the same"),
    "decoding.protect": RemovedKey(
        r"was removed: delete this key; all kinds of elements are protected, and protect_patterns: ['\d+'] protects "
        "numbers"
    ),
    "decoding.alignment_layer": RemovedKey("was removed: words are aligned by the mean of all layers; delete this key"),
    **{
        f"decoding.{key}": RemovedKey(
            "was removed: delete this key; decoding.guard re-decodes translations that loop", default
        )
        for key, default in {"no_repeat_ngram": "0", "repetition_penalty": "1.0"}.items()
    },
    "optimizer.ema_decay": RemovedKey(
        "was removed, because it lost 0.45 BLEU; delete this key, and average checkpoints with tmt export --average"
    ),
    **dict.fromkeys(
        ["data.modifiers.upper", "data.modifiers.title"],
        RemovedKey(
            "was removed, because decoding.restore_case translates text in capitals and title case: delete this key",
            "0.0",
        ),
    ),
    "data.modifiers.lower": RemovedKey(
        "was removed, because no benefit was measured: use lower_source, or delete this key", "0.0"
    ),
    "data.modifiers.join": RemovedKey(f"{_NO_BENEFIT}; `tmt translate` divides long lines into sentences", "0.0"),
    **dict.fromkeys(
        [f"data.modifiers.{name}" for name in ("insert_numbers", "emoji", "noise")], RemovedKey(_NO_BENEFIT, "0.0")
    ),
    "loss.consistency": RemovedKey(_NO_SECOND_PASS, "none"),
    "loss.consistency_weight": RemovedKey(_NO_SECOND_PASS),
    "loss.cutoff": RemovedKey(_NO_SECOND_PASS, "0.05"),
    "export": RemovedKey("was removed: delete this key; `tmt export` refuses models that the format does not support"),
    **{
        f"data.filters.*.{name}.{side}": RemovedKey(
            "was removed, because the filter uses src_lang and tgt_lang: delete this key; for another script, use "
            f"regex: {{side: {side}, keep: '\\p{{Han}}'}}"
        )
        for name in ("language", "script")
        for side in ("src", "tgt")
    },
    "validation.goal": RemovedKey(
        "was removed: delete this key, and set train.max_steps, or stop the training with Ctrl-C"
    ),
    "model.init": RemovedKey(f"{_NO_BENEFIT}; weights are always initialised with Xavier", "xavier"),
    "decoding.length_penalty": RemovedKey(
        f"{_NO_BENEFIT}; log-probabilities are divided by length^A, whose exponent is length_penalty_exponent",
        "average",
    ),
    "train.ledger": RemovedKey(
        "was removed, because removing pairs with a high loss gained no BLEU; delete this key", "false"
    ),
}
"""Keys (`section.key`), and values or items of lists (`section.key=item`) of earlier versions.

`*` is the name of any section, or an item of a list. In a configuration file they are errors; in the `config.yaml` of a
run, keys and items of lists are ignored, except keys with `refuses_run`.
"""

EXAMPLES = {
    "data.train": ", such as {src: F, tgt: G}",
    "data.validation": ", such as {src: F, tgt: G}",
    "data.test.": ", such as {src: F, tgt: G}",  # one set
    "data.test": ", such as {news: {src: F, tgt: G}}",
}
"""Examples of sections for messages about their keys, by the start of the path. The first that fits is shown."""


def describe_error(detail: dict[str, Any], keys: list[str], path: str = "") -> str:
    """Describe one pydantic error to the user.

    `keys` are the known keys of the section, for suggestions. `path` is the dotted key, which selects the message for a
    removed key or value.
    """
    kind, given = detail["type"], detail["input"]
    shown = "nothing" if given is None else json.dumps(given, ensure_ascii=False, default=str)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}..."
    if kind == "extra_forbidden":
        key = str(detail["loc"][-1])
        if re.match(r"\w+:\S", key):
            return f"unknown key; write a space after the colon: {key.replace(':', ': ', 1)}"
        return find_removed(path) or "unknown key, " + suggest(key, keys)
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in detail["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        return find_removed(f"{path}={given}") or f"{shown} is not allowed, {suggest(str(given), choices)}"
    if kind == "union_tag_invalid":  # an item of a list of filters, such as data.filters
        names = [name.strip("'") for name in detail["ctx"]["expected_tags"].split(", ")]
        tag = detail["ctx"]["tag"]
        removed = find_removed(f"{path.rpartition('.')[0]}={tag}")
        return removed or f'unknown filter "{tag}", {suggest(tag, names)}'
    if kind == "union_tag_not_found":
        return f"must be the name of one filter, or `name: {{options}}`, not {shown}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        example = next((text for key, text in EXAMPLES.items() if path.startswith(key)), "")
        remedy = "; delete this key, or indent keys below it" if given is None else ""
        return f"must be a section of keys and values{example}, not {shown}{remedy}"
    if kind == "tuple_type":
        return f"must be a list, with a dash before each item, not {shown}"
    if kind in ("float_parsing", "int_parsing") and "," in str(given):
        return f"must be a number with a decimal point and without separators of thousands, not {shown}"
    if kind in ("int_parsing", "int_from_float"):
        return f"must be a whole number, such as 10000, not {shown}"
    message = detail["msg"].removeprefix("Value error, ")
    if kind in ("section_error", "value_error"):
        return message
    return f"{message.replace('Input should', 'must', 1)}, not {shown}"


def find_removed(entry: str) -> str | None:
    """Return the message for a key of an earlier version, or for a value or an item, as in `REMOVED`."""
    return next((removed.message for pattern, removed in REMOVED.items() if fnmatchcase(entry, pattern)), None)


def suggest(word: str, choices: list[str]) -> str:
    """Return the end of a message about an unknown word: the most similar choice, or all choices."""
    lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), lower, n=1)
    return f'did you mean "{lower[close[0]]}"?' if close else f"choose from: {', '.join(choices)}"
