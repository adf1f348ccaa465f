"""Training pairs from monolingual text, by back-translation or distillation.

Each line becomes a record of `candidates.jsonl`. An interrupted job resumes after the last record. At the end, the text
files and the report are made from the records, and then the partial file is renamed to `candidates.jsonl`, so a folder
with that file is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_mt import __version__
from transformer_mt.choices import SynthesisDirection
from transformer_mt.data.text_files import Errors, check_is_file, read_lines
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.flows.line_io import Line, make_part_path, process_lines
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.files import write_text
from transformer_mt.tools.synthesis import synthetic_data
from transformer_mt.tools.synthesis.synthetic_data import CandidateMaker, PairCounts, Synthesis

CANDIDATES, REPORT = "candidates.jsonl", "report.json"


@dataclass(frozen=True)
class SynthesisReport:
    """Content of `report.json`."""

    direction: SynthesisDirection
    src_lang: str
    tgt_lang: str
    mono: Sequence[str]
    lines: int
    pairs: int
    dropped: dict[str, int]
    settings: dict[str, str]


@dataclass(frozen=True)
class SynthesisJob:
    """Monolingual text, the run that translates it, and the folder of the pairs."""

    run: RunFolder
    synthesis: Synthesis
    mono: Sequence[Path]
    errors: Errors
    folder: Path

    def execute(self, translator: Translator, *, resume: bool) -> SynthesisReport:
        """Write the pairs. Raises `UserError` if none is left, after the files were written."""
        max_tokens, settings = _describe_model(self, translator)
        maker = CandidateMaker(translator, max_tokens)
        self.folder.mkdir(exist_ok=True)
        found: list[SynthesisReport] = []

        def make_records(window: Sequence[Line], first_number: int) -> str:
            return "".join(each.to_json() for each in maker.make([line.src for line in window], first_number))

        def write_results(candidates: Path) -> None:
            counts = synthetic_data.write_pairs(candidates, self.synthesis, self.folder)
            found.append(self._make_report(counts, settings))
            write_text(self.folder / REPORT, json.dumps(asdict(found[0]), ensure_ascii=False, indent=1) + "\n")

        lines = map(Line, self._read_lines())
        output = self.folder / CANDIDATES
        process_lines(lines, make_records, output, settings, resume=resume, finish=write_results)
        return found[0]

    def _read_lines(self) -> Iterator[str]:
        for path in self.mono:
            yield from read_lines(path, self.errors)

    def _make_report(self, counts: PairCounts, settings: dict[str, str]) -> SynthesisReport:
        mono = [str(path) for path in self.mono]
        return SynthesisReport(self.synthesis.kind, *self.synthesis.languages, mono, *counts, settings)


def open_job(
    run: Path,
    kind: SynthesisDirection,
    tag: str | None,
    mono: Sequence[Path],
    output: Path,
    *,
    errors: Errors,
    any_language: bool,
) -> SynthesisJob:
    """Return a job after checks that need no model.

    Raises `UserError` if a text or a run has the wrong language, or the output has other files.
    """
    for path in mono:
        check_is_file(path)
        if not path.is_file():
            raise UserError(f"{path}: is not a regular file, and would be read twice; write its lines to a file")
    _check_output(output)
    folder = RunFolder.open(run)
    languages = synthetic_data.read_languages(folder, tag)
    synthesis = Synthesis(kind, *languages)
    for path in mono:
        synthetic_data.check_text(path, run, languages, errors, any_language=any_language)
    return SynthesisJob(folder, synthesis, mono, errors, output)


def _check_output(folder: Path) -> None:
    """Raise `UserError` unless the folder is new, empty, or left by an interrupted command."""
    if not folder.absolute().parent.is_dir():
        raise UserError(f"{folder}: there is no folder {folder.absolute().parent}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; pass a new folder")
    if (folder / CANDIDATES).exists():
        raise UserError(f"{folder}: exists, and its pairs are complete; pass a new folder, or delete it")
    if folder.exists() and any(folder.iterdir()) and not make_part_path(folder / CANDIDATES).exists():
        raise UserError(f"{folder}: exists, and holds other files; pass a new folder")


def _describe_model(job: SynthesisJob, translator: Translator) -> tuple[int, dict[str, str]]:
    """Return the longest source in tokens, and all settings that affect the pairs."""
    max_tokens = translator.max_segment_tokens
    settings = {
        "tmt synthesize": __version__,
        "--direction": job.synthesis.kind,
        **translator.provenance().identity,
        "longest source": str(max_tokens),
        **{f"decoding.{key}": str(value) for key, value in translator.config.output_options().items()},
    }
    return max_tokens, settings
