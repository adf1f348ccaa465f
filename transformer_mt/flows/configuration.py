"""Root of the configuration: all sections, checks across sections, loading and comparison."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field, ValidationError

from transformer_mt.choices import Precision
from transformer_mt.config.section import (
    MAY_CHANGE,
    CountOrAuto,
    FolderName,
    MayChange,
    PathName,
    Section,
    describe_error,
    has_lone_surrogate,
    list_error_keys,
)
from transformer_mt.config.yaml_files import (
    MAX_DEPTH,
    KeyPath,
    Location,
    Tree,
    Value,
    read_inherited,
    read_value,
    read_yaml,
)
from transformer_mt.data.batches import BatchConfig
from transformer_mt.data.data_config import DataConfig, Source, is_known_tag
from transformer_mt.data.tokenizers.tokenizer import TokenizerConfig
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import ScoringConfig
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.runs.folder import KeepConfig, RunFolder, find_user_cache, suggest_run
from transformer_mt.system.device import DeviceName
from transformer_mt.system.log import cut_list, log_rank0
from transformer_mt.tools.augmentation.modifiers import ModifierConfig
from transformer_mt.tools.export.ctranslate2_engine import find_unsupported_search_keys
from transformer_mt.tools.quality.pair_filters import ColumnFilter
from transformer_mt.tools.quality.quality_config import FILTERS, FilterList
from transformer_mt.training.training_config import (
    CompileMode,
    LossConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
    ValidationConfig,
)

COMMAND_LINE = Location("command line")
FILTERS_PATH = ("data", "filters")

# --- the keys of the configuration ------------------------------------------------------------------------------------


def find_section_class(path: KeyPath) -> type[Section] | None:
    """Return the section class at a path, or None if the path is not a section."""
    if path[: len(FILTERS_PATH)] == FILTERS_PATH:  # followed by the index and the name of a filter
        return FILTERS.get(str(path[-1])) if len(path) == len(FILTERS_PATH) + 2 else None
    found: Any = Config
    annotation: Any = None
    for key in path:
        if isinstance(key, int):
            found = _item_section_in(annotation)
        elif isinstance(found, type) and issubclass(found, BaseModel):
            annotation = found.model_fields[key].annotation if key in found.model_fields else None
            found = _section_in(annotation)
        elif typing.get_origin(found) is dict:
            found = typing.get_args(found)[1]
        else:
            return None
    return found if isinstance(found, type) and issubclass(found, Section) else None


def list_keys(path: KeyPath) -> list[str]:
    """Return the known keys at a path."""
    if path[:-1] == FILTERS_PATH:
        return list(FILTERS)
    section = find_section_class(path)
    return list(section.model_fields) if section else []


def list_suggestions(path: KeyPath) -> list[str]:
    """Return keys to suggest in place of the unknown key at `path`.

    If its name is known at the top level or in another section, these are the dotted keys. Otherwise, they are the keys
    of the section that `path` is in.
    """
    *section, key = path
    places = [(), *((name,) for name in Config.model_fields)] if len(section) <= 1 else ()
    keys = [".".join((*place, str(key))) for place in places if key in list_keys(place)]
    return keys or list_keys(tuple(section))


def _has_no_keys(path: KeyPath) -> bool:
    """Return whether `path` is a key whose value cannot be a section, such as a number."""
    section = find_section_class(path[:-1]) if path and path != FILTERS_PATH else None
    field = section.model_fields.get(str(path[-1])) if section else None
    return field is not None and _section_in(field.annotation) is None


def may_change_on_resume(key: str) -> bool:
    """Return whether a dotted key may change when a run resumes."""
    *path, name = key.split(".")
    section = find_section_class(tuple(path))
    if section is None or name not in section.model_fields:
        return False
    return any(isinstance(mark, MayChange) for mark in section.model_fields[name].metadata)


def _find_path_in_file(loc: KeyPath, tree: Tree) -> KeyPath:
    """Convert pydantic's error location to keys of the file: drop the names of union branches."""
    path: KeyPath = ()
    value: Value = tree.values
    for key in loc:
        if isinstance(value, dict) and key in value:
            value = cast(dict[str | int, Value], value)[key]
        elif isinstance(value, list) and isinstance(key, int):
            items = cast(list[Value], value)
            value = items[key] if key < len(items) else None  # a missing item
        elif str(key) not in list_keys(path):
            continue
        path = (*path, key)
    return path


def _section_in(annotation: Any) -> Any:
    """Find the section class, or the dict of sections, in the annotation of a field. Return None if it has none."""
    if typing.get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, Section)):
        return annotation
    return next((found for part in typing.get_args(annotation) if (found := _section_in(part))), None)


def _item_section_in(annotation: Any) -> Any:
    """Find the section class of the items of a tuple in the annotation of a field, or None."""
    if typing.get_origin(annotation) is tuple:
        return _section_in(annotation)
    return next((found for part in typing.get_args(annotation) if (found := _item_section_in(part))), None)


# --- sections ---------------------------------------------------------------------------------------------------------


class DataSection(DataConfig):
    """The sentence pairs, and the tools that clean and modify them."""

    filters: FilterList = ()
    """filters that clean the training pairs, applied in order: a name such as overlap, or a name with options"""
    modifiers: ModifierConfig = ModifierConfig()
    """random modifications of training pairs, which make the model robust"""

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Return the columns that filters read, each once."""
        return tuple(dict.fromkeys(filter_.name for filter_ in self.filters if isinstance(filter_, ColumnFilter)))


class Config(Section):
    """All settings of a run."""

    name: Annotated[FolderName | None, MAY_CHANGE] = None
    """name of the run and of its folder; null: the name of the file without its ending"""
    runs_dir: Annotated[PathName, MAY_CHANGE] = "runs"
    """folder that contains the run folders"""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """random seed of weight initialisation, dropout and batch order"""
    device: Annotated[DeviceName, MAY_CHANGE] = "auto"
    """cpu, cuda, cuda:N, mps, or auto (cuda if available, else mps, else cpu)"""
    precision: Precision = "auto"
    """dtype of matrix products in training: fp32, bf16, fp16, or auto (the fastest; fp16 only on older NVIDIA GPUs)"""
    compile: Annotated[CompileMode, MAY_CHANGE] = "auto"
    """torch.compile for each layer: layers (CUDA only), off, or auto (layers on CUDA for 1,000 steps and more)"""
    threads: Annotated[CountOrAuto, MAY_CHANGE] = "auto"
    """number of CPU threads of PyTorch; auto: one per physical core when the run is created"""
    data: DataSection
    """sentence pairs for training, validation and test"""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """conversion of text to token ids"""
    batches: BatchConfig = BatchConfig()
    """batch size and gradient accumulation"""
    model: ModelConfig = ModelConfig()
    """encoder-decoder Transformer"""
    loss: LossConfig = LossConfig()
    """training loss: cross-entropy with label smoothing"""
    optimizer: OptimizerConfig = OptimizerConfig()
    """optimizer and gradient clipping"""
    schedule: ScheduleConfig = ScheduleConfig()
    """learning rate schedule"""
    train: TrainConfig = TrainConfig()
    """length of the training, and intervals of checkpoints and logging"""
    validation: ValidationConfig = ValidationConfig()
    """validation loss, scores of greedy translations, and early stopping"""
    scoring: ScoringConfig = ScoringConfig()
    """computation of BLEU and chrF"""
    decoding: DecodingConfig = DecodingConfig()
    """translation by beam search or sampling; validation uses only maximum lengths, batch size and tag"""
    keep: KeepConfig = KeepConfig()
    """checkpoints to keep"""

    def find_conflicts(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield each contradiction between sections: the key to blame, and a message with the remedy."""
        yield from self._find_model_conflicts()
        if self.train.max_steps is None and self.train.max_epochs is None and self.validation.patience is None:
            yield (
                ("train", "max_steps"),
                "training would never end: set this, train.max_epochs or validation.patience",
            )
        if self.train.init_from is None:  # the tags of a warm start are those of the other run
            yield from self._tag_conflicts()
        sources = self.data.validation if isinstance(self.data.validation, tuple) else ()
        is_warm_start = self.train.init_from is not None
        for path, message in self.validation.find_problems([source.name for source in sources], is_warm_start):
            yield ("validation", *path), message
        yield from self._find_data_conflicts()
        for key, message in self.scoring.find_problems(self.data.tgt_lang):
            yield ("scoring", key), message
        if self.decoding.engine == "ctranslate2":
            for key, message in find_unsupported_search_keys(self.decoding):
                yield ("decoding", key), f"{message}; remove this key, or remove decoding.engine: ctranslate2"
        for key, message in self.schedule.find_problems(self.train.max_steps):
            yield ("schedule", key), message

    def _find_model_conflicts(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield settings of the model that do not fit the vocabulary, the lengths or the search."""
        if self.model.tie_embeddings == "all" and not self.tokenizer.joint:
            yield (
                ("model", "tie_embeddings"),
                "all needs one vocabulary for both languages: set tokenizer.joint: true, or decoder or none here",
            )
        n_controls = self.tokenizer.source_bos + bool(self.data.tags)
        longest, max_positions = self.data.max_length + n_controls, self.model.max_sequence_length
        if max_positions is not None and longest > max_positions:
            yield (
                ("model", "max_positions"),
                f"{max_positions} learned positions are too few: data.max_length allows sequences of {longest} "
                "tokens; raise this, or lower data.max_length",
            )

    def _find_data_conflicts(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield modifiers and filters of the training pairs that have no effect or are impossible."""
        if self.data.modifiers != ModifierConfig() and self.tokenizer.kind in ("word", "wordpiece"):
            yield (
                ("data", "modifiers"),
                f"need a vocabulary that spells every word: set tokenizer.kind to bpe, byte_bpe, unigram or char, not "
                f"{self.tokenizer.kind}",
            )
        for index, filter_ in enumerate(self.data.filters):
            if isinstance(filter_, ColumnFilter) and not all(
                source.table or source.dataset for source in self.data.train_sources
            ):
                yield (
                    (*FILTERS_PATH, index, filter_.kind),
                    "needs tables: `paste` text files and scores to a .tsv, and set table and columns in data.train",
                )
            if filter_.needs_held_out and not (self.data.validation or self.data.test):
                yield (
                    (*FILTERS_PATH, index, filter_.kind),
                    "there is no text to compare with: set data.validation or data.test, or remove this filter",
                )

    def list_used_tags(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield the tags of validation, test and decoding, each with its key."""
        for keys, source in self.data.iterate_held_out_sources():
            if source.tag is not None:
                yield ("data", *keys, "tag"), source.tag
        if self.decoding.tag is not None:
            yield ("decoding", "tag"), self.decoding.tag

    def list_missing_tags(self) -> Iterator[KeyPath]:
        """Yield the key of each source without a tag."""
        yield from (("data", *keys, "tag") for keys, source in self.data.iterate_sources() if not source.tag)

    def _tag_conflicts(self) -> Iterator[tuple[KeyPath, str]]:
        """Yield tags that the training pairs lack, and tags that are missing although each training pair has one."""
        known = ", ".join(self.data.tags)
        for key, tag in self.list_used_tags():
            if not is_known_tag(tag, self.data.tags):
                yield key, f"no training source has the tag {tag} (present: {known or 'none'})"
        if self.data.needs_tag:
            for key in self.list_missing_tags():
                yield key, f"is required, because each training source has a tag: set one of {known}"


# --- loading ----------------------------------------------------------------------------------------------------------


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load a YAML file with the files that it inherits from, and apply overrides (`section.key=value`).

    `config.yaml` of a run means the run in its folder, which may have been renamed or moved.

    Raises one `UserError` that lists every mistake on a separate line: file, line, key, remedy.
    """
    if has_lone_surrogate(str(path)):
        raise UserError(f"{path}: its name is not UTF-8 text; rename the file or folder")
    if path.suffix not in (".yaml", ".yml", ".json") and path.is_file():  # JSON is YAML
        files = f"{path} {overrides[0]}" if overrides and Path(overrides[0]).is_file() else "SRC TGT"
        raise UserError(
            f"{path}: not a configuration (.yaml, .yml or .json); `tmt init {files}` writes one for two text files"
        )
    # a source and `data.test` are not merged with inherited ones
    tree = read_inherited(path, _read_file, lambda key_path: find_section_class(key_path) not in (None, Source))
    if (run := find_run(path)) is not None:
        tree = _set_run_location(tree, run)
    return _validate(tree, path, overrides)


def load_run_or_file(path: Path, overrides: Sequence[str]) -> tuple[Config, RunFolder | None]:
    """Load the configuration of a run folder or of a YAML file, with overrides. Return it with the run, or None.

    `config.yaml` of a run means the run. Raises `UserError` if the path does not exist, and for overrides of the model
    or tokenizer of a run.
    """
    path = run.path if (run := find_run(path)) is not None else path
    if not path.exists():
        raise UserError(f"{path}: no such run folder and no such YAML file (looked in {Path.cwd()}){suggest_run(path)}")
    if not path.is_dir():
        return load(path, overrides), None
    run = RunFolder.open(path)
    for override in overrides:
        if override.startswith(("model", "tokenizer")):
            raise UserError(f"{override}: the model and tokenizers of a run cannot be changed; leave it out")
    return load_run(run, overrides), run


def load_settings(run: RunFolder) -> Config:
    """Load the settings with which a run was trained, to compare them. Raises `UserError` as for `load`."""
    return _validate(run.read_config(), run.config, ())


def load_run(run: RunFolder, overrides: Sequence[str] = ()) -> Config:
    """Load the configuration of a run, for a command that does not train it. Raises `UserError` as for `load`.

    Its `data.cache_dir` and `runs_dir` are replaced, because its author may not be trusted.
    """
    cache_dir = Path(DataConfig.model_fields["cache_dir"].default)  # of the trainings in this folder
    folder = str(cache_dir if cache_dir.is_dir() else find_user_cache())
    tree = _set_run_location(run.read_config(), run).replace(("data", "cache_dir"), folder, Location(str(run.config)))
    return _validate(tree, run.config, overrides)


def find_run(config: Path) -> RunFolder | None:
    """Return the run whose `config.yaml` this is, or None."""
    folder = config.parent if config.parent.name not in ("", "..") else config.parent.resolve()
    run = RunFolder(folder)
    return run if config.name == run.config.name and run.exists() else None


def _read_file(path: Path) -> Tree:
    """Read one file. In the `config.yaml` of a run, keys that were removed since then are ignored, and logged."""
    return read_yaml(path) if (run := find_run(path)) is None else run.read_config(logged="*")


def _set_run_location(tree: Tree, run: RunFolder) -> Tree:
    """Return the settings of a run with the name and place of its folder, which may have been renamed or moved."""
    here = Location(str(run.config))
    place = Path(str(tree.values.get("runs_dir", "runs")), str(tree.values.get("name")))
    if place.resolve() == run.path.resolve():
        return tree
    return tree.replace(("name",), run.path.name, here).replace(("runs_dir",), str(run.path.parent), here)


def _validate(tree: Tree, path: Path, overrides: Sequence[str]) -> Config:
    for override in overrides:
        key, equals, text = map(str.strip, override.partition("="))
        if not equals or not all(key.split(".")):
            remedy = "; pass a file as --config FILE" if override.endswith((".yaml", ".yml")) else ""
            raise UserError(f"{COMMAND_LINE}: {override}: an override is section.key=value{remedy}")
        if key.count(".") >= MAX_DEPTH:
            raise UserError(f"{COMMAND_LINE}: {key[:40]}...: no key has more than {MAX_DEPTH} parts")
        tree = tree.replace(tuple(key.split(".")), read_value(text, f"{COMMAND_LINE}: {key}"), COMMAND_LINE)
    if tree.values.get("name") is None:
        tree = tree.replace(("name",), path.stem, Location(str(path)))
    try:
        config = Config.model_validate(tree.values)
    except ValidationError as error:
        raise UserError("\n".join(cut_list(_describe_errors(error, tree)))) from None
    for number, filter_ in enumerate(config.data.filters):
        filter_.set_location(_error_line(tree, (*FILTERS_PATH, number, filter_.kind), ""))
    conflicts = [_error_line(tree, key_path, message) for key_path, message in config.find_conflicts()]
    if conflicts:
        raise UserError("\n".join(cut_list(conflicts)))
    return config


def list_presets() -> dict[str, Path]:
    """Return the paths of the presets, the configurations that ship with the program, by their names."""
    inside = Path(str(resources.files("transformer_mt"))) / "configs"
    folder = inside if inside.exists() else inside.parents[1] / "configs"
    paths = [*sorted(folder.glob("*.yaml")), *sorted((folder / "architectures").glob("*.yaml"))]
    return {path.stem: path for path in paths if path.stem != "reference"}


def find_preset(name: str) -> Path:
    """Return the path of a preset. Raises `UserError` for an unknown name."""
    presets = list_presets()
    if name not in presets:
        raise UserError(f"there is no preset {name}; choose one of {', '.join(presets)}")
    return presets[name]


def _error_line(tree: Tree, path: KeyPath, message: str) -> str:
    dotted = ".".join(str(key) for key in path)
    return ": ".join(part for part in (str(tree.locate(path)), dotted, message) if part)


def _describe_errors(error: ValidationError, tree: Tree) -> list[str]:
    messages: dict[KeyPath, list[str]] = {}
    for detail in error.errors():
        path = (*_find_path_in_file(detail["loc"], tree), *list_error_keys(cast(dict[str, Any], detail)))
        concerns_value = detail["type"] not in ("missing", "section_error")  # else `input` is the section around it
        if concerns_value and isinstance(given := detail["input"], dict) and given and _has_no_keys(path):
            key = str(next(iter(cast(dict[object, object], given))))
            similar = get_close_matches(key, list_suggestions((key,)), n=1)
            remedy = f'; did you mean "{similar[0]}"?' if similar else ""
            message = f"must be a single value, so there is no key {'.'.join(map(str, (*path, key)))}{remedy}"
        else:
            message = describe_error(cast(dict[str, Any], detail), list_suggestions(path), ".".join(map(str, path)))
        messages.setdefault(path, []).append(message)
    return [
        _error_line(tree, path, "; or: ".join(dict.fromkeys(messages[path])))
        for path in sorted(messages, key=tree.locate)
    ]


# --- comparison -------------------------------------------------------------------------------------------------------


def flatten(section: Section) -> dict[str, Any]:
    """Return every key as a dotted path, with its plain value."""

    def walk(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict) and value:
                yield from walk(cast(dict[str, Any], value), f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return dict(walk(section.model_dump(mode="json"), ""))


def list_changed_keys(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Return the dotted keys that differ: those that may change when a run resumes, and those that may not."""
    before, after = flatten(old), flatten(new)
    differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    allowed = [key for key in differing if may_change_on_resume(key)]
    return allowed, [key for key in differing if key not in allowed]


def refuse_weights_only(run: RunFolder) -> None:
    """Raise `UserError` if a run has only weights."""
    if exported := run.read_record().exported:
        raise UserError(
            f"{run.path}: holds only weights ({exported.what}), so its training cannot be resumed;\n"
            f"start a new run from them: name=... train.init_from={quote(str(run.path))}"
        )


def check_unchanged(run: RunFolder, old: Config, new: Config) -> None:
    """Refuse to resume a run with other settings, and log the changed settings that do not affect the result."""
    free, fixed = list_changed_keys(old, new)
    before, after = flatten(old), flatten(new)
    if fixed:
        changes = "\n".join(f"  {key}: {_json(before.get(key))} -> {_json(after.get(key))}" for key in fixed)
        raise UserError(
            f"{run.path}: this run was created with other settings:\n{changes}\n"
            f"resume with the settings of the run: tmt train --config {quote(str(run.config))}\n"
            "or choose another name (name=...), or start over with tmt train --restart (the old run is moved aside)"
        )
    for key in free:
        log_rank0(f"{key}: {_json(before.get(key))} -> {_json(after.get(key))}")
    if {"device", "threads", "compile"} & set(free):
        log_rank0(
            "device, threads or compile changed: results may differ in the last bits from those of an uninterrupted run"
        )
    if "train.cuda_graphs" in free:
        log_rank0("train.cuda_graphs changed: batches have other padding, so that dropout draws other random numbers")


def check_data_settings(run: RunFolder, requested: Config) -> None:
    """Refuse settings of the data with which the training of an existing run would not resume."""
    if run.exists():
        refuse_weights_only(run)
        old = load_settings(run)
        settings = {"data": requested.data, "tokenizer": requested.tokenizer, "seed": requested.seed}
        check_unchanged(run, old, old.model_copy(update=settings))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- JSON schema ------------------------------------------------------------------------------------------------------


def make_json_schema() -> str:
    """Return the JSON schema that editors use to complete and check configuration files."""
    schema = Config.model_json_schema()
    schema["properties"]["base"] = {
        "type": "string",
        "description": "YAML file to inherit from, relative to this file",
    }
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)  # a file may inherit required keys
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
