"""Training pairs from monolingual text: translate it, drop bad translations, write both sides as text files.

Back-translation (Sennrich et al. 2016) pairs the translation of a line, as the source, with the line itself, as the
target. Distillation (Kim & Rush 2016) pairs a line, as the source, with its translation, as the target.

Translated lines go to a temporary file, from which both text files are written at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_mt import __version__
from transformer_mt.choices import SynthesisDirection
from transformer_mt.data.sources import check_is_text
from transformer_mt.data.text_files import Errors, check_is_regular, read_lines
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import find_degenerate
from transformer_mt.flows.line_io import WINDOW_LINES, Line, make_part_path, process_lines
from transformer_mt.flows.translation import warn_of_other_language
from transformer_mt.runs.folder import check_is_outside_runs
from transformer_mt.system.files import atomic_file

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator

TRANSLATED = "translated.jsonl"  # temporary file of the folder


class TranslatedLine(NamedTuple):
    """A line with its translation, and the reason why it is dropped; an empty one if it is kept."""

    drop_reason: str
    text: str
    translation: str = ""


def is_complete(folder: Path) -> bool:
    """Return whether a folder has both sides of the pairs, and no temporary file of an interrupted command."""
    return len([*folder.glob("train.*")]) == 2 and not make_part_path(folder / TRANSLATED).exists()


def delete_leftovers(folder: Path) -> None:
    """Delete the temporary files of a complete folder, whose command was killed before it deleted them itself."""
    for path in folder.glob(f"{TRANSLATED}*"):
        path.unlink()


def check_folder(mono: Sequence[Path], folder: Path) -> None:
    """Raise `UserError` if a text is unsuitable, or the folder has files, except those of an interrupted command."""
    for path in mono:
        check_is_regular(path)
        check_is_text(path, may_be_table=False)
    check_is_outside_runs(folder, "pass a folder outside of it as --output")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"{folder}: there is no folder {folder.absolute().parent}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; pass a new folder")
    is_interrupted = make_part_path(folder / TRANSLATED).exists()
    if not is_interrupted and folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: exists, and has files; pass a new folder")


def make_pair_paths(translator: Translator, direction: SynthesisDirection, folder: Path) -> tuple[Path, Path]:
    """Return the files of the new pairs, the source first. Raises `UserError` if the model needs a tag."""
    src, tgt = translator.runs[0].data.languages_of(translator.config.tag)
    if direction == "back":
        src, tgt = tgt, src
    if src == tgt:
        src, tgt = "src", "tgt"
    return folder / f"train.{src}", folder / f"train.{tgt}"


def synthesize(
    translator: Translator,
    direction: SynthesisDirection,
    mono: Sequence[Path],
    folder: Path,
    *,
    errors: Errors,
    resume: bool,
) -> tuple[tuple[Path, Path], Counter[str]]:
    """Write the pairs. Return their files, and the numbers of lines by drop reason, which is empty if kept.

    The files are deleted again if no line is kept, so that the same command can be repeated with other text.

    Raises `UserError` if there is no text, or if an interrupted command had other text or settings.
    """
    paths = make_pair_paths(translator, direction, folder)
    heads = {path: [*islice(read_lines(path, errors), WINDOW_LINES)] for path in mono}
    if not any(heads.values()):
        raise UserError(f"{', '.join(map(str, mono))}: the text is empty; pass other files with --mono")
    for path, head in heads.items():
        warn_of_other_language(translator, "\n".join(head), str(path))
    folder.mkdir(exist_ok=True)
    translated = folder / TRANSLATED
    texts = (text for path in mono for text in read_lines(path, errors))
    settings = {
        "tmt synthesize": __version__,
        **translator.provenance().identity,
        "longest source": str(translator.max_segment_tokens),
        **{f"decoding.{key}": str(value) for key, value in translator.config.output_options().items()},
    }
    counts = Counter[str]()

    def process(window: Sequence[Line], first_number: int) -> str:
        lines = translate_window(translator, [line.src for line in window], first_number)
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def finish(file: Path) -> None:
        counts.update(write_pairs(read_translated(file), paths, direction))
        if not counts[""]:
            for path in paths:
                path.unlink()

    process_lines(map(Line, texts), process, translated, settings, resume=resume, finish=finish)
    translated.unlink()
    return paths, counts


def translate_window(translator: Translator, texts: Sequence[str], first_number: int) -> list[TranslatedLine]:
    """Translate some consecutive lines. The number of the first one, counted from 1, seeds the sampling.

    Each translation is judged on its own, so that windows do not matter.
    """
    ids = translator.tokenizers.src.encode(texts)
    lengths = [len(found) if text.strip() else 0 for text, found in zip(texts, ids, strict=True)]
    lines = [
        TranslatedLine("too_long" if length else "blank", text) for length, text in zip(lengths, texts, strict=True)
    ]
    chosen = [i for i, length in enumerate(lengths) if 0 < length <= translator.max_segment_tokens]
    line_numbers = [first_number + i for i in chosen]
    found = translator.n_best([texts[i] for i in chosen], line_numbers=line_numbers, n_best=1)
    for i, (best, *_) in zip(chosen, found, strict=True):
        faults = find_degenerate([texts[i]], [best.text], [best.finished]).rows
        lines[i] = TranslatedLine(next(iter(faults), ""), texts[i], best.text)
    return lines


def read_translated(path: Path) -> Iterator[TranslatedLine]:
    """Yield the translated lines of a temporary file."""
    with path.open("rb") as file:
        for line in file:
            yield TranslatedLine(*json.loads(line))


def write_pairs(
    lines: Iterator[TranslatedLine], paths: tuple[Path, Path], direction: SynthesisDirection
) -> Counter[str]:
    """Write the kept lines as two line-aligned text files, and return the number of lines by reason.

    The source file appears last.
    """
    counts = Counter[str]()
    with (
        atomic_file(paths[0]) as src_part,
        atomic_file(paths[1]) as tgt_part,
        src_part.open("wb") as src,
        tgt_part.open("wb") as tgt,
    ):
        text, translation = (tgt, src) if direction == "back" else (src, tgt)
        for line in lines:
            counts[line.drop_reason] += 1
            if not line.drop_reason:
                text.write(f"{line.text}\n".encode())
                translation.write(f"{line.translation}\n".encode())
    return counts
