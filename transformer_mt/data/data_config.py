"""Configuration of the sentence pairs, and how they are mixed. Filters and modifiers are keys of tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from transformer_mt.config.section import MAY_CHANGE, PathName, Section, check_folder_name, section_error
from transformer_mt.config.yaml_loader import KeyPath
from transformer_mt.data.mixture import Stage, find_mixture_problem
from transformer_mt.data.sources import HeldOutSources, Language, Source, TrainSources
from transformer_mt.errors import UserError


class DataConfig(Section):
    """The sentence pairs."""

    src_lang: Language
    """source language, an ISO 639 code such as en; required"""
    tgt_lang: Language
    """target language, an ISO 639 code; it also selects the tokenizer of BLEU; required"""
    train: TrainSources
    """training pairs: exactly one of builtin, src with tgt, table, dataset; or a list of named sources; required"""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """sources without weights: 1 draws them in proportion to their size, and a larger value more evenly"""
    stages: tuple[Stage, ...] = ()
    """parts of the training with other source weights; after the last stage, the weights in data.train apply"""
    validation: HeldOutSources | None = None
    """validation pairs, in the same form as train; null: split off training pairs"""
    validation_size: int = Field(default=1000, ge=1)
    """number of training pairs to split off if validation is null (at most a tenth)"""
    test: dict[str, Source] = Field(default={})
    """test sets by name, with the same keys as train; scored at the end with the best checkpoint"""
    cache_dir: Annotated[PathName, MAY_CHANGE] = "runs/.cache"
    """folder of the memory-mapped tables; it may be deleted while no training runs"""
    max_length: int = Field(default=256, ge=2)
    """maximum tokens of either side of a training pair, end symbol included"""
    too_long: Literal["drop", "truncate"] = "drop"
    """how to treat a longer training pair: drop or truncate"""

    @model_validator(mode="after")
    def _check_test_names(self) -> DataConfig:
        for name in self.test:
            try:
                check_folder_name(name)
            except ValueError as error:
                raise section_error("test", str(error)) from None
        if reserved := {"train", "validation"} & self.test.keys():
            raise section_error("test", f"{min(reserved)} is a reserved name: rename this test set")
        return self

    @model_validator(mode="after")
    def _held_out_sources_name_a_split(self) -> DataConfig:
        for keys, source in self.iterate_held_out_sources():
            if (source.builtin or source.dataset) and source.split is None:
                key = ".".join(map(str, (*keys, "split")))
                raise section_error(key, "the default, train, is for training: set another split")
        return self

    @model_validator(mode="after")
    def _check_mixture(self) -> DataConfig:
        train = self.train if isinstance(self.train, tuple) else ()
        for key in ("train", "validation"):
            if getattr(self, key) == ():
                raise section_error(key, "names no source: add one")
        names = [source.name for source in self.validation] if isinstance(self.validation, tuple) else []
        for number, name in enumerate(names):
            if name in names[:number]:
                raise section_error(f"validation.{number}.name", f"{name} is the name of an earlier source: rename one")
            if name == "all":
                raise section_error(f"validation.{number}.name", "all means all sources together: rename this one")
        if problem := find_mixture_problem(train, self.stages, self.temperature):
            raise section_error(*problem)
        return self

    @property
    def train_sources(self) -> tuple[Source, ...]:
        """Return the training sources as a tuple."""
        return self.train if isinstance(self.train, tuple) else (self.train,)

    @property
    def validation_sources(self) -> tuple[Source, ...]:
        """Return the sources of validation pairs; without `validation`, those of the training pairs."""
        if self.validation is None:
            return self.train_sources
        return self.validation if isinstance(self.validation, tuple) else (self.validation,)

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tags of the training sources, each once."""
        return tuple(dict.fromkeys(source.tag for source in self.train_sources if source.tag is not None))

    @property
    def needs_tag(self) -> bool:
        """Return whether every training source has a tag, so that every source sentence must have one."""
        return all(source.tag is not None for source in self.train_sources)

    def with_resolved_stages(self, max_steps: int | None) -> Self:
        """Return a copy in which each stage ends at a step instead of a share of a training of `max_steps`."""
        stages = (
            stage if (last := stage.last_step(max_steps)) is None else stage.model_copy(update={"until": str(last)})
            for stage in self.stages
        )
        return self.model_copy(update={"stages": tuple(stages)})

    def languages_of(self, tag: str | None) -> tuple[str, str]:
        """Return the languages of the first training source with this tag, or of the first one if `tag` is None.

        Raises:
            UserError: No source has the tag, or a tag is needed.
        """
        known = ", ".join(self.tags)
        if tag is None and self.needs_tag:
            raise UserError(f"the model needs a tag before each source sentence: pass one of {known}")
        if tag is not None and tag not in self.tags:
            raise UserError(f"unknown tag {tag}; the model knows: {known or 'none'}")
        sources = self.train_sources
        source = next((source for source in sources if source.tag == tag), sources[0])
        return source.languages(self.src_lang, self.tgt_lang)

    def iterate_held_out_sources(self) -> Iterator[tuple[KeyPath, Source]]:
        """Yield the sources of validation and test sets, each with its keys in the section."""
        if isinstance(self.validation, tuple):
            yield from ((("validation", number), source) for number, source in enumerate(self.validation))
        elif self.validation is not None:
            yield ("validation",), self.validation
        yield from ((("test", name), source) for name, source in self.test.items())
