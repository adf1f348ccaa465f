"""Synthetic sentence pairs from monolingual text: translate it, drop bad translations, write both sides as text files.

Back-translation (Sennrich et al. 2016) pairs the translation of a line, as the source, with the line itself, as the
target. Distillation (Kim & Rush 2016) pairs a line, as the source, with its translation, as the target.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from transformer_mt.choices import SynthesisDirection
from transformer_mt.config.yaml_files import render_value
from transformer_mt.data.data_config import DataConfig, TrainSource, primary_language
from transformer_mt.data.text_files import Errors, read_lines
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import HINTS, find_degenerate
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import atomic_file
from transformer_mt.tools.languages.detection import find_other_language

SAMPLE_LINES = 1000  # of a file, to detect its language
TOO_LONG = "too_long"
DROP_REASONS = {
    "blank": "the line has no text",
    TOO_LONG: "the line has more tokens than the training pairs of the model: split it into sentences",
    **HINTS,
}
"""Reasons to drop a line, each with its meaning or advice."""


@dataclass(frozen=True)
class Synthesis:
    """Back-translation or distillation (forward), and the languages of the model that makes the synthetic side."""

    kind: SynthesisDirection
    text_lang: str
    translation_lang: str

    @property
    def is_backtranslation(self) -> bool:
        """Return whether the translations are the sources of the new pairs."""
        return self.kind == "back"

    @property
    def languages(self) -> tuple[str, str]:
        """Return the languages of the new pairs, the source first."""
        if self.is_backtranslation:
            return self.translation_lang, self.text_lang
        return self.text_lang, self.translation_lang

    def files(self, folder: Path) -> tuple[Path, Path]:
        """Return the files of the new pairs, the source first. Their suffixes are the languages."""
        src, tgt = self.languages
        if src == tgt:
            src, tgt = "src", "tgt"
        return folder / f"train.{src}", folder / f"train.{tgt}"


# --- checks before the translation ------------------------------------------------------------------------------------


def read_languages(run: RunFolder, tag: str | None) -> tuple[str, str]:
    """Return the languages that a run translates from and to, with this tag or with that of its configuration.

    Raises:
        UserError: The tag is unknown or missing.
    """
    data = run.read_section("data", DataConfig)
    try:
        return data.languages_of(tag or run.read_section("decoding", DecodingConfig).tag)
    except UserError as error:
        raise UserError(f"--tag: {run.path}: {error}") from None


def check_text(path: Path, run: Path, languages: tuple[str, str], errors: Errors, *, any_language: bool) -> None:
    """Raise `UserError` if a file has no text, or if its text is certainly not in the source language of the run."""
    sample = [*islice((line for line in read_lines(path, errors) if line.strip()), SAMPLE_LINES)]
    if not sample:
        raise UserError(f"{path}: holds no text; is it the right file?")
    if any_language:
        return
    src_lang, tgt_lang = languages
    if found := find_other_language(sample, src_lang):
        remedy = f"pass text in {src_lang}, or a run that translates from {found}"
        if primary_language(found) == primary_language(tgt_lang):
            remedy = f"pass a run of the other direction, {tgt_lang} to {src_lang}, or text in {src_lang}"
        raise UserError(
            f"{path}: the text seems to be in {found}, and {run} translates {src_lang} to {tgt_lang};\n"
            f"{remedy} (--any-language, if the detection is wrong)"
        )


# --- translation ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A line with its translation, and the reason why it was dropped, if it was."""

    text: str
    translation: str = ""
    drop_reason: str | None = None

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class CandidateMaker:
    """Translates lines, and finds bad translations. Each line is judged on its own, so windows do not matter."""

    translator: Translator
    max_tokens: int  # of a line

    def make(self, texts: Sequence[str], first_number: int) -> list[Candidate]:
        """Translate some consecutive lines. The number of the first one, counted from 1, seeds the sampling."""
        ids = self.translator.tokenizers.src.encode(texts)
        lengths = [len(found) if text.strip() else 0 for text, found in zip(texts, ids, strict=True)]
        reasons = (TOO_LONG if n_tokens else "blank" for n_tokens in lengths)
        candidates = [Candidate(text, drop_reason=reason) for text, reason in zip(texts, reasons, strict=True)]
        chosen = [i for i, n_tokens in enumerate(lengths) if 0 < n_tokens <= self.max_tokens]
        line_numbers = [first_number + i for i in chosen]
        found = self.translator.n_best([texts[i] for i in chosen], line_numbers=line_numbers, n_best=1)
        for i, (best, *_) in zip(chosen, found, strict=True):
            faults = find_degenerate([texts[i]], [best.text], [best.finished]).rows
            candidates[i] = Candidate(texts[i], best.text, next(iter(faults), None))
        return candidates


# --- the new training text --------------------------------------------------------------------------------------------


class PairCounts(NamedTuple):
    """Counts of the kept and dropped lines of a monolingual text."""

    n_lines: int
    n_pairs: int
    dropped: dict[str, int]  # by reason, in the order of DROP_REASONS


def write_pairs(candidates: Path, synthesis: Synthesis, folder: Path) -> PairCounts:
    """Write the good candidates as two line-aligned text files."""
    counts = Counter[str | None]()
    src_path, tgt_path = synthesis.files(folder)
    with (
        atomic_file(src_path) as src_part,
        atomic_file(tgt_path) as tgt_part,
        src_part.open("wb") as src,
        tgt_part.open("wb") as tgt,
    ):
        text, translation = (tgt, src) if synthesis.is_backtranslation else (src, tgt)
        for candidate in read_candidates(candidates):
            counts[candidate.drop_reason] += 1
            if candidate.drop_reason is None:
                text.write(f"{candidate.text}\n".encode())
                translation.write(f"{candidate.translation}\n".encode())
    dropped = {reason: counts[reason] for reason in DROP_REASONS if counts[reason]}
    return PairCounts(counts.total(), counts[None], dropped)


def read_candidates(path: Path) -> Iterator[Candidate]:
    """Yield the records of a file, one at a time."""
    with path.open("rb") as file:
        for line in file:
            yield Candidate(**json.loads(line))


def render_training_data(run: RunFolder, synthesis: Synthesis, folder: Path) -> str:
    """Return the YAML of `data` for the next training: the pairs of the run, in its direction, and those of a folder.

    A run with tags learned several directions, so its pairs are left out.
    """
    data = run.read_section("data", DataConfig)
    src_lang, tgt_lang = map(render_value, synthesis.languages)
    lines = ["data:", f"  src_lang: {src_lang}", f"  tgt_lang: {tgt_lang}", "  train:"]
    names: list[str] = []
    for source in () if data.tags else data.train_sources:
        keys = source.model_dump(mode="json", exclude_defaults=True, exclude={"weight", "repeat"})
        names.append(keys.pop("name", "parallel"))
        if synthesis.is_backtranslation:
            keys = {_swap_side(key): value for key, value in keys.items()}
        ordered = {key: keys[key] for key in TrainSource.model_fields if key in keys}
        lines.append(f"    - {render_value({'name': names[-1], **ordered})}")
    name = "synthetic"
    while name in names:  # the run was trained on synthetic pairs too
        name += "-2"
    src, tgt = map(str, synthesis.files(folder))
    lines.append(f"    - {render_value({'name': name, 'src': src, 'tgt': tgt})}")
    return "\n".join(lines)


def _swap_side(key: str) -> str:
    """Return the key of the other side, such as tgt_column for src_column."""
    side, separator, rest = key.partition("_")
    other = {"src": "tgt", "tgt": "src"}.get(side, side)
    return f"{other}{separator}{rest}"
