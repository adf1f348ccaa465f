"""`tmt synthesize`: make training pairs from monolingual text, by back-translation or distillation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from transformer_mt.choices import EngineName, Quantization, SynthesisDirection
from transformer_mt.cli.command import (
    Command,
    OptionGroup,
    flag,
    group,
    option,
)
from transformer_mt.cli.options import (
    LoadingOptions,
    SamplingOptions,
    SearchOptions,
    collect_overrides,
    engine_option,
    ensemble_option,
    errors_option,
    quantization_option,
    run_argument,
)
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.data.text_files import Errors
from transformer_mt.errors import UserError
from transformer_mt.system.log import log


@dataclass(frozen=True, kw_only=True)
class FileOptions(OptionGroup):
    """Monolingual text, and the folder for the pairs."""

    TITLE: ClassVar[str] = "input and output"

    mono: tuple[Path, ...] = option(
        "sentences in the source language of RUN, one per line (plain or compressed); repeat the option for more files",
        metavar="F",
        is_required=True,
    )
    output: Path = option("new folder for train.SRC and train.TGT", metavar="DIR", is_required=True)
    resume: bool = flag("continue an interrupted command")
    errors: Errors = errors_option()


@dataclass(frozen=True, kw_only=True)
class Synthesize(Command):
    """Translate monolingual text, and write its lines and their translations as training pairs of a new model.

    back: back-translation. Each line becomes the target of a pair, and its translation the source. RUN translates in
    the other direction than the new model. forward: distillation. Each line becomes the source of a pair, and its
    translation the target, so that the new model imitates RUN, which translates in the same direction. Blank
    and too long lines are dropped, and empty, repetitive or unfinished translations.
    """

    EXAMPLE: ClassVar[str] = (
        "tmt synthesize runs/de-en --direction back --mono news.de --output back --sample --top-k 10"
    )

    run: Path = run_argument()
    direction: SynthesisDirection = option("which side of the pairs is translated; see above", is_required=True)
    loading: LoadingOptions = group(LoadingOptions)
    ensemble: tuple[Path, ...] = ensemble_option()
    engine: EngineName | None = engine_option()
    quantization: Quantization | None = quantization_option()
    files: FileOptions = group(FileOptions)
    search: SearchOptions = group(SearchOptions)
    sampling: SamplingOptions = group(SamplingOptions)

    def execute(self) -> None:
        """Write the pairs, and print their number and that of the dropped lines by reason."""
        from transformer_mt.flows.synthesize import check_folder, delete_leftovers, is_complete, synthesize
        from transformer_mt.flows.translation import load_translator

        files = self.files
        if files.resume and is_complete(files.output):
            delete_leftovers(files.output)
            log(f"tmt: {files.output} is complete; nothing to resume (to translate again, pass a new folder)")
            return
        check_folder(files.mono, files.output)
        others = {"engine": self.engine, "quantization": self.quantization, "guard": False}
        overrides = collect_overrides(self.search, self.sampling, n_best=1, **others)
        options = self.loading.make_load_options(ensemble=self.ensemble, split="never")
        translator = load_translator(self.run, options, **overrides)
        self.sampling.check(self.search, "synthesize", translator.config.sample)
        (src, tgt), counts = synthesize(
            translator, self.direction, files.mono, files.output, errors=files.errors, resume=files.resume
        )
        n_lines, n_pairs = counts.total(), counts.pop("", 0)
        if n_pairs:
            ends = ["" if n == 1 else "s" for n in (n_pairs, n_lines)]
            print_text(f"{n_pairs:,} pair{ends[0]} from {n_lines:,} line{ends[1]}: {src} and {tgt}")
        if counts:
            print_table(("dropped", "lines"), [(reason, f"{n:,}") for reason, n in counts.most_common()], numbers=(1,))
        if not n_pairs:
            raise UserError(f"{', '.join(map(str, files.mono))}: no line is left of {n_lines:,}, so no file is written")
