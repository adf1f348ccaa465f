"""`tmt export`: write a run's model for another program, or its weights or a mean of them as a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import ClassVar, Literal

from transformer_mt.choices import Quantization
from transformer_mt.cli.command import Command, option
from transformer_mt.cli.options import check_is_new, number, run_argument
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.errors import MissingPackageError, UserError
from transformer_mt.flows import line_io
from transformer_mt.system import files

SENTENCEPIECE = {"sentencepiece": "transformer_mt[sentencepiece]"}
REQUIREMENTS = {
    "argos": SENTENCEPIECE,
    "transformers": SENTENCEPIECE,
    "onnx": dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "transformer_mt[onnx]"),
}
"""Modules that a format needs, and what installs each."""
COLUMNS = ("loss", "nll", "ppl", "bleu", "chrf", "degenerate")


@dataclass(frozen=True, kw_only=True)
class Export(Command):
    """Export the model of a run to another program, or its weights, or a mean of the weights of several checkpoints.

    weights: write a folder that other commands read like a run, without the training state. A mean of checkpoints
    (Vaswani et al. 2017, section 6.1) is validated like the checkpoints of a training.
    ctranslate2: write a folder for CTranslate2, with a script translate.py that needs only the packages ctranslate2 and
    tokenizers. Both engines translate up to 100 validation sentences; export.json contains the comparison.
    argos: write a package that Argos Translate installs from the file, if its tokenizer gives the same pieces as that
    of the run on held-out text and odd lines.
    transformers: write a folder for MarianMTModel and MarianTokenizer, of an imported OPUS-MT model, also after its
    fine-tuning.
    onnx: write encoder.onnx and decoder.onnx, one step with a cache, with a script translate.py that needs only the
    packages onnxruntime, tokenizers and numpy. The comparison is that of ctranslate2. With --web, a page translates
    inside the browser.
    """

    EXAMPLE: ClassVar[str] = "tmt export runs/mine --to ctranslate2 --output engine"

    run: Path = run_argument()
    to: Literal["weights", "ctranslate2", "argos", "transformers", "onnx"] = option(
        "target format (default: weights)", default="weights"
    )
    output: Path = option("a new folder; argos: a new file FILE.argosmodel", metavar="PATH", is_required=True)
    checkpoint: str | None = option("checkpoint to export (default: best)", metavar="best|last|STEP")
    average: int | None = option(
        "weights: the mean of the N newest checkpoints, or with --checkpoint best of the N best (keep.last and "
        "keep.best limit N)",
        metavar="N",
        parse=number(2),
    )
    quantization: Quantization | None = option(
        "float32, int8, or auto (default): float32, but int8 for argos; ctranslate2, argos: also int8_float32, "
        "int8_float16, int8_bfloat16, int16, float16, bfloat16",
        metavar="Q",
    )
    src: Path | None = option(
        "ctranslate2, argos, onnx: compare on the lines of this file (default: validation sentences)", metavar="F"
    )
    web: Path | None = option(
        "onnx: also write index.html, a page in which the model translates; its libraries come from DIR, a folder "
        "node_modules that npm wrote",
        metavar="DIR",
    )

    def execute(self) -> None:
        """Run `tmt export`."""
        is_argos, has_page = self.to == "argos", self.web is not None
        for name, is_given in (("--quantization", self.quantization), ("--src", self.src)):
            if is_given and self.to in ("weights", "transformers"):
                raise UserError(f"export --to {self.to}: {name} needs --to ctranslate2, argos or onnx; leave it out")
        if has_page and self.to != "onnx":
            raise UserError(f"export --to {self.to}: --web needs --to onnx; leave it out")
        if self.average and self.to != "weights":
            raise UserError("export: --average writes weights, which can be exported afterwards; leave out --to")
        if self.average and self.checkpoint not in (None, "best", "last"):
            raise UserError("export: --average takes the newest checkpoints, or the best: pass --checkpoint best")
        if is_argos != (self.output.suffix == ".argosmodel"):
            raise UserError(
                f"export: {self.output}: the name of a package of --to argos ends in .argosmodel, others do not"
            )
        needed = REQUIREMENTS.get(self.to, {}).items()
        if missing := dict.fromkeys(requirement for module, requirement in needed if find_spec(module) is None):
            raise MissingPackageError(f"export: --to {self.to}", *missing)
        line_io.check_files(self.src)
        from transformer_mt.runs.folder import RunFolder

        source = RunFolder.open(self.run)
        check_is_new(self.output)
        from transformer_mt.flows import export

        info = source.find_checkpoint(self.checkpoint or "best")
        if self.to == "transformers":
            export.export_transformers(source, info, self.output)
            print_text(f"{self.output}: MarianMTModel of {source.path}, step {info.step:,}, {self._measure()}")
            return
        if self.to != "weights":
            default = "int8" if is_argos else "float32"
            quantization = default if self.quantization in (None, "auto") else self.quantization
            writers = {
                "ctranslate2": export.export_ctranslate2,
                "argos": export.export_argos,
                "onnx": partial(export.export_onnx, web=self.web),
            }
            lines = writers[self.to](source, str(info.step), self.output, quantization, self.src)
            print_text(f"{self.output}: {source.path}, step {info.step:,}, {quantization}, {self._measure()}", *lines)
            if not is_argos:
                print_text(f"python {quote(str(self.output / 'translate.py'))} < F > G translates lines")
            if has_page:
                print_text(
                    f"python -m http.server --bind 127.0.0.1 -d {quote(str(self.output))} serves its page, index.html"
                )
            return
        averaged = [info]
        if self.average:
            averaged = export.select_checkpoints(source, self.average, takes_best=self.checkpoint == "best")
        result = export.export_weights(source, averaged, self.output)
        if self.average:
            scored = [*((f"{each.step:,}", each.scores) for each in averaged), ("average", result.scores)]
            rows = [
                [name, *(f"{values[key]:.4f}" if key in values else "-" for key in COLUMNS)] for name, values in scored
            ]
            print_table(["step", *COLUMNS], rows, numbers=range(1, len(COLUMNS) + 1))
        steps = ", ".join(f"{each.step:,}" for each in averaged)
        print_text(
            f"{self.output}: weights of {source.path}, steps {steps}, {self._measure()}; tmt translate, evaluate, "
            "explain and export read it like a run, and train.init_from starts from it"
        )

    def _measure(self) -> str:
        path = self.output
        return files.format_bytes(files.measure_folder(path) if path.is_dir() else path.stat().st_size)
