"""The root of the configuration: sections, the checks that cross them, reading, overriding and writing YAML."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BaseModel, Field, ValidationError

from transformer_mt.config.section import (
    MAY_CHANGE,
    CountOrAuto,
    FolderName,
    KeyPath,
    Location,
    MayChange,
    PathName,
    Section,
    Tree,
    Value,
    describe_error,
    expand_path,
    read_value,
    read_yaml,
)
from transformer_mt.data.batches import BatchConfig
from transformer_mt.data.corpus import DataConfig
from transformer_mt.data.sources import Source
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.decoding.config import DecodingConfig
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import ScoringConfig
from transformer_mt.export.ctranslate2_support import unsupported_model, unsupported_search
from transformer_mt.model.config import ModelConfig
from transformer_mt.system.device import DeviceName, Precision
from transformer_mt.system.files import real
from transformer_mt.training.loss import LossConfig
from transformer_mt.training.optimizers import OptimizerConfig
from transformer_mt.training.progress import KeepConfig, TrainConfig, ValidationConfig
from transformer_mt.training.schedule import ScheduleConfig

COMMAND_LINE = Location("command line")


class Config(Section):
    """Everything that decides what a run does."""

    name: Annotated[FolderName | None, MAY_CHANGE] = None
    """name of the run and of its folder; null: the file's name"""
    runs_dir: Annotated[PathName, MAY_CHANGE] = "runs"
    """folder of the run folders"""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """of weights, dropout and the order of batches"""
    device: Annotated[DeviceName, MAY_CHANGE] = "auto"
    """auto (cuda, else mps, else cpu), cpu, cuda, cuda:N or mps"""
    precision: Precision = "auto"
    """of the model's matrix products in training: bf16, fp32, or auto (bf16 where it is the faster one)"""
    threads: Annotated[CountOrAuto, MAY_CHANGE] = "auto"
    """CPU threads of torch; auto: one a core"""
    export: Annotated[Literal["ctranslate2"] | None, MAY_CHANGE] = None
    """where the model is to go: ctranslate2 refuses, before the training, what `tmt export` could not hold"""
    data: DataConfig
    """the sentence pairs"""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """text to ids"""
    batches: BatchConfig = BatchConfig()
    """how much is learnt from at once"""
    model: ModelConfig = ModelConfig()
    """the encoder-decoder Transformer"""
    loss: LossConfig = LossConfig()
    """label-smoothed cross-entropy"""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Adam, Muon or schedule-free AdamW, and a mean of the weights"""
    schedule: ScheduleConfig = ScheduleConfig()
    """the learning rate"""
    train: TrainConfig = TrainConfig()
    """how long, and how often something is said or saved"""
    validation: ValidationConfig = ValidationConfig()
    """the loss and greedy translations of the validation pairs"""
    scoring: ScoringConfig = ScoringConfig()
    """BLEU and chrF"""
    decoding: DecodingConfig = DecodingConfig()
    """translating; of it, validation heeds the limits of length"""
    keep: KeepConfig = KeepConfig()
    """which checkpoints stay"""

    def problems(self) -> Iterator[tuple[KeyPath, str]]:
        """What is wrong between sections: where, and what to do."""
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            yield (
                ("model", "tie_embeddings"),
                "all needs one vocabulary for both languages: set tokenizer.joint: true, or decoder or none here",
            )
        longest = self.data.max_length + self.tokenizer.source_bos
        if self.model.longest is not None and longest > self.model.longest:
            yield (
                ("model", "max_positions"),
                f"{self.model.longest} learned positions, and data.max_length lets sequences have {longest} tokens: "
                "raise this, or lower that",
            )
        if (self.decoding.alignment_layer or 1) > self.model.decoder.n_layers:
            yield (
                ("decoding", "alignment_layer"),
                f"{self.decoding.alignment_layer}: there are {self.model.decoder.n_layers} layers in the decoder",
            )
        if self.train.max_steps is None and self.train.max_epochs is None and self.validation.patience is None:
            yield (
                ("train", "max_steps"),
                "nothing would ever end the training: set a limit here, or validation.patience",
            )
        for key, what in self.scoring.problems(self.data.tgt_lang):
            yield ("scoring", key), what
        if what := self.loss.problem(self.model.drops):
            yield ("loss", "consistency"), what
        for section, key, what in self.not_in_ctranslate2() if self.export else ():
            yield (section, key), f"{what}, or leave out export: {self.export}"
        if self.optimizer.kind == "schedule_free" and self.schedule.kind != "constant":
            yield (
                ("schedule", "kind"),
                "optimizer.kind schedule_free needs no curve: set constant, which warms up and stays",
            )
        for key, what in self.schedule.problems(self.train.max_steps):
            yield ("schedule", key), what

    def not_in_ctranslate2(self) -> Iterator[tuple[str, str, str]]:
        """What `tmt export --to ctranslate2` refuses: section, key, and why."""
        yield from (("model", key, why) for key, why in unsupported_model(self.model))
        yield from (("decoding", key, why) for key, why in unsupported_search(self.decoding))


# --- reading ----------------------------------------------------------------------------------------------------------


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a file, what it inherits from, and the overrides of the command line (`section.key=value`).

    Raises one `UserError` with every mistake, a line each: file, line, key, remedy.
    """
    tree = _read_inherited(path, ())
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            remedy = "; --config names a file" if override.endswith((".yaml", ".yml")) else ""
            raise UserError(f"{COMMAND_LINE}: {override}: an override is section.key=value{remedy}")
        tree = tree.replacing(tuple(key.split(".")), read_value(text, f"{COMMAND_LINE}: {key}"), COMMAND_LINE)
    if tree.values.get("name") is None:
        tree = tree.replacing(("name",), path.stem, Location(str(path)))
    try:
        config = Config.model_validate(tree.values)
    except ValidationError as error:
        raise UserError("\n".join(_explain(error, tree))) from None
    problems = [_line(tree, where, what) for where, what in config.problems()]
    if problems:
        raise UserError("\n".join(problems))
    return config


def builtin(name: str) -> Path:
    """A configuration that comes with the program: from the installed package, or from the checkout."""
    inside = Path(str(resources.files("transformer_mt"))) / "configs" / f"{name}.yaml"
    return inside if inside.exists() else inside.parents[2] / "configs" / f"{name}.yaml"


def _read_inherited(path: Path, heirs: tuple[Path, ...]) -> Tree:
    files = (*heirs, real(path))
    if files[-1] in heirs:
        chain = " -> ".join(file.name for file in files)
        raise UserError(f"{path}: base: the files inherit from each other in a circle: {chain}")
    tree = read_yaml(path)
    base = tree.values.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{tree.place(('base',))}: base: must be the name of one YAML file")
    try:
        inherited = _read_inherited(path.parent / expand_path(base), files)
    except ValueError as error:
        raise UserError(f"{tree.place(('base',))}: base: {error}") from None
    except UserError as error:
        raise UserError(f"{error}\n(inherited by {tree.place(('base',))})") from None
    inherited.values.pop("name", None)  # two runs of one name would be one run
    return tree.over(inherited, _is_merged)


def _is_merged(path: KeyPath) -> bool:
    """Whether a file adds to what it inherits there. A source is one thing, and test sets go with the sources."""
    return _schema_of(path) not in (None, Source)


def _line(tree: Tree, path: KeyPath, message: str) -> str:
    dotted = ".".join(str(key) for key in path)
    return ": ".join(part for part in (str(tree.place(path)), dotted, message) if part)


def _explain(error: ValidationError, tree: Tree) -> list[str]:
    """A line for each mistake, in the order of the file."""
    by_path: dict[KeyPath, list[str]] = {}
    for detail in error.errors():
        path = _path_in_file(detail["loc"], tree)
        if detail["type"] == "refusal":  # of a section's own check, which names one of its keys
            path = (*path, *filter(None, detail.get("ctx", {})["key"].split(".")))
        section = _schema_of(path[:-1])
        what = describe_error(cast(dict[str, Any], detail), list(section.model_fields) if section else [])
        by_path.setdefault(path, []).append(what)
    return [_line(tree, path, "; or: ".join(dict.fromkeys(by_path[path]))) for path in sorted(by_path, key=tree.place)]


def _path_in_file(loc: KeyPath, tree: Tree) -> KeyPath:
    """pydantic's location without the branches of unions, which are no keys."""
    path: KeyPath = ()
    value: Value = tree.values
    for key in loc:
        if isinstance(value, dict) and key in value:
            value = cast(dict[str | int, Value], value)[key]
        elif isinstance(value, list) and isinstance(key, int):
            items = cast(list[Value], value)
            value = items[key] if key < len(items) else None  # one that is missing
        elif _schema_of(path) is None or str(key) not in cast(type[Section], _schema_of(path)).model_fields:
            continue
        path = (*path, key)
    return path


def _schema_of(path: KeyPath) -> type[Section] | None:
    """The section that stands at a path, if one does."""
    found: Any = Config
    for key in path:
        if isinstance(found, type) and issubclass(found, BaseModel):
            found = _section_in(found.model_fields[str(key)].annotation) if str(key) in found.model_fields else None
        elif typing.get_origin(found) is dict:
            found = typing.get_args(found)[1]
        else:
            return None
    return found if isinstance(found, type) and issubclass(found, Section) else None


def _section_in(annotation: Any) -> Any:
    """A section, a dict of sections, or None, out of a field's annotation."""
    if typing.get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, Section)):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section_in(part))), None)


# --- comparing --------------------------------------------------------------------------------------------------------


def flatten(section: Section) -> dict[str, Any]:
    """Every key with its dotted path and plain value."""

    def walk(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict) and value:
                yield from walk(cast(dict[str, Any], value), f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return dict(walk(section.model_dump(mode="json"), ""))


def changed_keys(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """The keys in which two configurations differ: those that may change within a run, and those that may not."""
    before, after = flatten(old), flatten(new)
    differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    free = [key for key in differing if _may_change(key.split("."))]
    return free, [key for key in differing if key not in free]


def _may_change(path: list[str]) -> bool:
    section = _schema_of(tuple(path[:-1]))
    if section is None or path[-1] not in section.model_fields:
        return False
    return any(isinstance(mark, MayChange) for mark in section.model_fields[path[-1]].metadata)


# --- writing ----------------------------------------------------------------------------------------------------------


def render(config: Config) -> str:
    """The configuration as YAML, every key with its value and its manual. `load` reads it back.

    A kind of section that stands more than once (a source) is written out in full the first time only.
    """
    return "\n".join(_render(config, "", set())) + "\n"


def _render(section: Section, indent: str, seen: set[type[Section]]) -> Iterator[str]:
    repeated = type(section) in seen
    seen.add(type(section))
    for key, about in type(section).model_fields.items():
        value = getattr(section, key)
        manual = f"  # {about.description}"
        if repeated and value in (None, ()):
            continue
        if isinstance(value, Section):
            lines = list(_render(value, indent + "  ", seen))
            if lines:  # none where it stands again and sets nothing
                yield ("" if indent else "\n") + f"{indent}{key}:{manual}"
                yield from lines
        elif isinstance(value, dict) and value:
            yield f"{indent}{key}:{manual}"
            for name, inner in cast(dict[str, Section], value).items():
                yield f"{indent}  {_scalar(name)}:"
                yield from _render(inner, indent + "    ", seen)
        else:
            yield f"{indent}{key}: {_scalar(cast(object, value))}{manual}"


def _scalar(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_scalar(item) for item in cast(tuple[object, ...], value))}]"
    if isinstance(value, str):  # quoted wherever any YAML reader could take it for something else
        bare = yaml.safe_dump(value, width=10**6).removesuffix("\n...\n").strip()
        if bare == value and re.fullmatch(r"[\w./ -]+", value):
            return value
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
    return "{}" if value == {} else json.dumps(value)


def json_schema() -> str:
    """The JSON schema by which editors complete and check the files."""
    schema = Config.model_json_schema()
    schema["properties"]["base"] = {
        "type": "string",
        "description": "a YAML file to inherit from, relative to this one",
    }
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)  # a file may inherit what it lacks
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
