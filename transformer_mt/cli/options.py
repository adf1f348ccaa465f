"""The options that several commands share: configurations, loading of runs, search settings.

The module of all configuration sections is imported inside functions, because `tmt translate` does not need it.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from transformer_mt.choices import EngineName, Precision, Quantization, SplitWhen
from transformer_mt.cli.command import OptionGroup, Parse, collect_given, flag, list_given_flags, option, positional
from transformer_mt.data.text_files import Errors
from transformer_mt.errors import UserError
from transformer_mt.system.files import find_existing_parent

if TYPE_CHECKING:
    from transformer_mt.flows.configuration import Config
    from transformer_mt.flows.translation import LoadOptions

CONFIG_FILE = "configuration file (default: the built-in quickstart)"


# --- shared options ---------------------------------------------------------------------------------------------------


def run_argument() -> Path:
    """Declare the run folder."""
    return positional("a run folder", metavar="RUN")


def json_flag() -> bool:
    """Declare the option of output for programs."""
    return flag("print one JSON object with all results")


def engine_option() -> EngineName | None:
    """Declare the library that computes."""
    help = (
        "library that computes: torch; ctranslate2, which is faster on a CPU; auto (default): ctranslate2 on a CPU, if "
        "it supports the model and all options"
    )
    return option(help)


def quantization_option() -> Quantization | None:
    """Declare the type of the weights of CTranslate2."""
    help = (
        "weights of CTranslate2: int8 is smaller, and changes some translations; int8_float32, "
        "int8_float16, int8_bfloat16, int16, float16, bfloat16, float32, or auto (default): float32"
    )
    return option(help, metavar="Q")


def ensemble_option() -> tuple[Path, ...]:
    """Declare the option for further models that are searched together."""
    help = (
        "average the token probabilities of RUN and RUN2, at the same --checkpoint; both need the same vocabulary; "
        "the settings are those of RUN; repeat the option for more runs"
    )
    return option(help, default=(), metavar="RUN2")


def errors_option() -> Errors:
    """Declare the option for input that is not UTF-8."""
    help = "input that is not UTF-8: strict (default): stop with an error; replace: replace invalid bytes by U+FFFD"
    return option(help, default="strict")


def check_is_new(output: Path) -> None:
    """Raise `UserError` if `--output` names a file or folder that exists, or is inside a run."""
    if output.exists() or output.is_symlink():
        raise UserError(f"{output}: exists already; pass a new folder as --output")
    if not (existing := find_existing_parent(output)).is_dir():
        raise UserError(f"{output}: {existing} is a file; pass a new folder as --output")
    from transformer_mt.runs.folder import check_is_outside_runs

    check_is_outside_runs(output, "pass a folder outside of it as --output")


def number(low: float, high: float = math.inf, kind: type[int] | type[float] = int) -> Parse:
    """Return a function that parses a number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            limits = f"of at least {low:g}" if high == math.inf else f"between {low:g} and {high:.15g}"
            raise argparse.ArgumentTypeError(f"{text}: pass a {'whole ' * (kind is int)}number {limits}")
        return value

    return parse


def language(text: str) -> str:
    """Parse a language code."""
    from transformer_mt.data.data_config import check_language

    try:
        return check_language(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def split_sentences_option() -> SplitWhen:
    """Declare which lines are translated sentence by sentence."""
    help = (
        "split lines, and segments of documents, into sentences and translate each: auto (default): those with more "
        "sentences or tokens than the model was trained on; long: those with more tokens; always: all; never: none, "
        "and lines too long are truncated"
    )
    return option(help, default="auto")


def guard_option() -> bool | None:
    """Declare whether faulty translations are repaired."""
    help = (
        "translate a line again if its translation has a fault: a loop, a lost number, link or emoji, a copied source, "
        "or a far too short or long text (default: yes)"
    )
    return option(help)


def overrides_argument() -> tuple[str, ...]:
    """Declare overrides of configuration keys."""
    help = "override a key of the configuration: model.d_model=384, 'data.train={src: F, tgt: G}'"
    return positional(help, metavar="section.key=value", default=())


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(OptionGroup):
    """A configuration file, by default the built-in quickstart, and overrides of its keys."""

    config: Path | None = positional(CONFIG_FILE, metavar="X.yaml", default=None)
    overrides: tuple[str, ...] = overrides_argument()

    def split(self) -> tuple[Path | None, tuple[str, ...]]:
        """Return the file, or None, and the overrides. Either may be the first argument."""
        arguments = (*([str(self.config)] if self.config else []), *self.overrides)
        if not arguments or ("=" in arguments[0] and not os.path.exists(arguments[0])):  # noqa: PTH110  (Path.exists raises an error for a long text)
            return None, arguments
        return Path(arguments[0]), arguments[1:]

    def load(self) -> Config:
        """Load the configuration."""
        from transformer_mt.flows import configuration

        path, overrides = self.split()
        return configuration.load(path or configuration.find_preset("quickstart"), overrides)


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(OptionGroup):
    """Which checkpoint is loaded, and where it runs."""

    device: str = option("auto (default), cpu, cuda, cuda:N or mps", default="auto")
    threads: str = option("CPU threads (default: one per core)", default="auto", metavar="N")
    checkpoint: str = option("checkpoint to load (default: best)", default="best", metavar="best|last|STEP")
    precision: Precision = option(
        "precision of matrix products: fp32, bf16, fp16, or auto (default): the fastest one", default="auto"
    )

    def make_load_options(
        self,
        *,
        ensemble: Sequence[Path] = (),
        few_texts: bool = False,
        split: SplitWhen = "auto",
    ) -> LoadOptions:
        """Return how a model is loaded in the process of a command."""
        from transformer_mt.flows.translation import LoadOptions

        return LoadOptions(
            checkpoint=self.checkpoint,
            device=self.device,
            threads=self.threads,
            precision=self.precision,
            ensemble=ensemble,
            few_texts=few_texts,
            split=split,
            owns_process=True,
        )


class MaxLength(NamedTuple):
    """Maximum tokens of a translation: factor * source tokens + offset."""

    max_length_factor: float
    max_length_offset: int

    @classmethod
    def parse(cls, text: str) -> MaxLength:
        """Parse a number of tokens, or 1.5*source+10."""
        match = re.fullmatch(r"(?:([0-9]+(?:\.[0-9]+)?)\*source\+)?([1-9][0-9]*)", text)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text}: give a number of tokens, such as 100, or 1.5*source+10")
        return cls(float(match[1] or 0), int(match[2]))


class DecodingKey(NamedTuple):
    """A key of section `decoding` with its value in YAML."""

    key: str
    text: str

    @classmethod
    def parse(cls, text: str) -> DecodingKey:
        """Parse KEY=VALUE."""
        key, equals, value = text.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{text}: give KEY=VALUE, such as restore_case=false")
        return cls(key.removeprefix("decoding."), value)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OptionGroup):
    """Options of the search. Their names are those of keys of section `decoding`, except `max_length`."""

    TITLE: ClassVar[str] = "search"
    DESCRIPTION: ClassVar[str | None] = (
        "Defaults are in parentheses. Section decoding of the run's config.yaml overrides them."
    )

    beam: int | None = option("beam size (5); 1: greedy", metavar="K")
    length_penalty_exponent: float | None = option(
        "exponent A (1): rank hypotheses by log-probability / length^A; the length includes EOS",
        metavar="A",
        flag="--length-penalty",
    )
    min_length: int | None = option("minimum tokens of a translation (1)", metavar="N")
    max_length: MaxLength | None = option(
        "maximum tokens of a translation including EOS: a number, or A*source+B (2*source+10)",
        metavar="L",
        parse=MaxLength.parse,
    )
    batch_tokens: int | None = option("maximum of padded source tokens times beam size in a batch", metavar="N")
    tag: str | None = option(
        "tag of the direction, for a model that was trained with tags, such as 2de or en:de", metavar="TAG"
    )
    decoding: tuple[DecodingKey, ...] | None = option(
        "set any key of section decoding of the run, such as restore_case=false; may be repeated",
        metavar="KEY=VALUE",
        parse=DecodingKey.parse,
    )


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(OptionGroup):
    """Options of sampling."""

    TITLE: ClassVar[str] = "sampling instead of beam search"

    sample: bool | None = option("draw translations at random")
    temperature: float | None = option("divide the logits by T (1)", metavar="T")
    top_k: int | None = option("sample from the K most likely tokens (all)", metavar="K")
    top_p: float | None = option("sample from the most likely tokens whose probabilities sum to P (1)", metavar="P")
    seed: int | None = option("random seed (1); samples depend on the seed and the line number", metavar="N")

    def check(self, search: SearchOptions, command: str, is_sampling: bool) -> None:
        """Raise `UserError` for options that do not fit `decoding.sample` of the run."""
        given = [name for name in list_given_flags(self) if name != "--sample"]
        if given and not is_sampling:
            raise UserError(f"{command}: {given[0]} needs --sample; add it, or leave the option out")
        if is_sampling and search.beam is not None:
            raise UserError(f"{command}: sampling has no beam; leave out --beam or --sample")


def collect_overrides(*groups: OptionGroup, **others: object) -> dict[str, object]:
    """Return the given options of some groups, and others that are not None, as keys of section `decoding`."""
    from transformer_mt.config.yaml_files import read_value

    given = collect_given(*groups) | {key: value for key, value in others.items() if value is not None}
    max_length = given.pop("max_length", None)
    keys: Sequence[DecodingKey] = given.pop("decoding", ())
    values = {each.key: read_value(each.text, f"--decoding {each.key}=") for each in keys}
    return given | (max_length._asdict() if isinstance(max_length, MaxLength) else {}) | values
