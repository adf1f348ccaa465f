"""Reading of the options that several commands share: loading of runs and configurations, search settings.

The module of all configuration sections is imported inside functions, because `tmt translate` does not need it.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.errors import UserError
from transformer_mt.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_mt.config.root import Config
    from transformer_mt.data.data_config import DataConfig
    from transformer_mt.decoding.provenance import ModelProvenance
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.markup.translation_memory import TranslationMemory

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")  # JSON is YAML
LOADING_OPTIONS = ("checkpoint", "device", "threads", "precision")
SEARCH_OPTIONS = (
    "beam",
    "length_penalty",
    "min_length",
    "max_length",
    "no_repeat_ngram",
    "repetition_penalty",
    "batch_tokens",
    "tag",
)
MARKUP_OPTIONS = ("markup", "protect", "protect_patterns", "glossary", "glossary_mode")
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "seed")


def format_flag(option: str) -> str:
    """Convert the name of an option to its flag: `top_k` -> `--top-k`."""
    return f"--{option.replace('_', '-')}"


def get_loading_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options that select a checkpoint and a device."""
    return {option: getattr(args, option) for option in LOADING_OPTIONS if getattr(args, option) is not None}


def get_decoding_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options as keys of the configuration section `decoding`. Some commands lack some options."""
    names = (*SEARCH_OPTIONS, *MARKUP_OPTIONS, "sample", *SAMPLING_OPTIONS)
    options: dict[str, Any] = {name: getattr(args, name, None) for name in names}
    options["length_penalty_exponent"] = options.pop("length_penalty", None)
    options["n_best"] = getattr(args, "n_best", 1)  # commands without this option need only the best translation
    max_length = options.pop("max_length")
    if max_length is not None:
        match = re.fullmatch(r"(?:([0-9.]+)\*source\+)?([0-9]+)", max_length)
        if match is None:
            raise UserError(f"--max-length {max_length}: give a number of tokens, such as 100, or 1.5*source+10")
        options |= {"max_length_factor": match[1] or 0, "max_length_offset": match[2]}
    return {key: value for key, value in options.items() if value is not None}


def check_sampling_options(args: argparse.Namespace, is_sampling: bool) -> None:
    """Raise `UserError` for options that do not fit `decoding.sample` of the run."""
    for option in SAMPLING_OPTIONS:
        if getattr(args, option) is not None and not is_sampling:
            raise UserError(f"{args.command}: {format_flag(option)} needs --sample; add it, or leave the option out")
    if is_sampling and args.beam is not None:
        raise UserError(f"{args.command}: sampling has no beam; leave out --beam or --sample")


def load_translator(args: argparse.Namespace, run: Path, *, few_texts: bool = False) -> Translator:
    """Load the model of a run, and of the runs of `--ensemble`, with the options of the command line.

    For `few_texts`, `--precision auto` is fp32 on a CPU: its bf16 products are faster only in batches.
    """
    from transformer_mt.decoding.decoding_config import DecodingConfig

    ensemble = getattr(args, "ensemble", None) or ()
    folders = [RunFolder.open(path) for path in (run, *ensemble)]  # mistakes are reported before torch is imported
    folders[0].read_section("decoding", DecodingConfig).with_options(get_decoding_options(args))
    for folder in folders:
        folder.find_checkpoint(args.checkpoint or "best")
    gc.disable()  # importing torch makes many objects that live until the end; searching them takes half a second
    try:
        from transformer_mt.decoding.translator import Translator
        from transformer_mt.system.device import resolve_machine

        options = {"device": "auto", "threads": "auto", "precision": "auto", **get_loading_options(args)}
        if few_texts and options["precision"] == "auto":
            machine = resolve_machine(options["device"], "auto", options["threads"])
            options["precision"] = "fp32" if machine.device.type == "cpu" else machine.precision
        return Translator.load(run, **options, ensemble=ensemble, **get_decoding_options(args))
    finally:
        gc.freeze()
        gc.enable()


def load_memory(path: Path | None, provenance: ModelProvenance) -> TranslationMemory | None:
    """Read the translation memory for the languages of a model, if one is given."""
    if path is None:
        return None
    from transformer_mt.tools.markup.translation_memory import TranslationMemory

    return TranslationMemory.read(path, provenance.src_lang, provenance.tgt_lang)


def split_config_arguments(args: argparse.Namespace) -> tuple[Path | None, list[str]]:
    """Return the configuration file, or None, and the overrides. The first override may be in place of the file."""
    path, overrides = args.config, args.overrides
    if path is not None and "=" in str(path) and not os.path.exists(path):  # noqa: PTH110  (Path.exists raises an error for a long text)
        path, overrides = None, [str(path), *overrides]  # tmt config key=value
    elif path is None and overrides and "=" not in overrides[0]:
        path, overrides = Path(overrides[0]), overrides[1:]  # tmt train X.yaml
    return path, overrides


def list_config_keys() -> list[str]:
    """Return the dotted keys of the configuration."""
    from transformer_mt.config import root as configuration

    return list(configuration.flatten(configuration.load(configuration.find_builtin_config("quickstart"))))


def load_config(args: argparse.Namespace) -> Config:
    """Load the configuration file, or the built-in quickstart, with the overrides of the command line."""
    from transformer_mt.config import root as configuration

    path, overrides = split_config_arguments(args)
    if path is not None:
        check_is_config(path, overrides)
    return configuration.load(path or configuration.find_builtin_config("quickstart"), overrides)


def load_training_config(args: argparse.Namespace) -> Config:
    """Load a configuration like `load_config`. Raises `UserError` if its paths are relative to that file."""
    config, (path, _) = load_config(args), split_config_arguments(args)
    if path is not None:
        check_current_folder(config, path)
    return config


def check_is_config(path: Path, overrides: Sequence[str]) -> None:
    """Raise `UserError` if a file is given that is not a configuration, such as training text."""
    if path.suffix not in CONFIG_SUFFIXES and path.is_file():
        files = f"{path} {overrides[0]}" if overrides and Path(overrides[0]).is_file() else "SRC TGT"
        raise UserError(
            f"{path}: not a configuration (.yaml, .yml or .json); `tmt init {files}` writes one for two text files"
        )


def check_current_folder(config: Config, path: Path) -> None:
    """Raise `UserError` if a file of the configuration is missing in the current folder, but exists beside `path`."""
    for file in map(Path, list_files(config.data)):
        if not file.exists() and (path.parent / file).exists():
            raise UserError(
                f"{file}: no such file (looked in {Path.cwd()}), but {path.parent / file} exists: files in a "
                f"configuration are relative to the current folder;\nrun the command in the folder {path.parent}"
            )


def list_files(data: DataConfig) -> Iterator[str]:
    """Yield the text files and tables of all sources."""
    for source in (*data.train_sources, *(source for _, source in data.iterate_held_out_sources())):
        yield from source.files


def load_run_or_config(
    path: Path, overrides: Sequence[str], *, trains_again: bool = False
) -> tuple[Config, RunFolder | None]:
    """Load the configuration of a run folder or of a YAML file, with overrides. Return it with the run, or None.

    Raises `UserError` if the path does not exist, and for overrides of the model or tokenizer of a run, unless the
    command trains again with the configuration of the run.
    """
    from transformer_mt.config import root as configuration

    if path.is_dir():
        run = RunFolder.open(path)
        for override in overrides:
            if override.startswith(("model", "tokenizer")) and not trains_again:
                raise UserError(f"{override}: the model and tokenizers of a run cannot be changed; leave it out")
        return configuration.load_run(run, overrides), run
    if not path.exists():
        raise UserError(f"{path}: no such run folder and no such YAML file (looked in {Path.cwd()})")
    check_is_config(path, overrides)
    config = configuration.load(path, overrides)
    check_current_folder(config, path)
    return config, None
