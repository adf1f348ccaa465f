"""`tmt import`: write a run folder with a pretrained model of another toolkit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import ClassVar

from transformer_mt.cli.command import Command, option, positional
from transformer_mt.cli.options import check_is_new
from transformer_mt.cli.table import print_text


@dataclass(frozen=True, kw_only=True)
class ImportModel(Command):
    """Import a pretrained model as a run folder: OPUS-MT, M2M-100, NLLB, Argos Translate, or a CTranslate2 conversion.

    The model computes the same as in its toolkit, and other commands read the folder like a run: tmt translate,
    evaluate, explain, serve and export, and train.init_from to fine-tune it. Nothing in the files is executed, and a
    model that cannot be imported exactly is refused.
    """

    EXAMPLE: ClassVar[str] = "tmt import downloads/opus-mt-en-de --output runs/opus-en-de"

    source: str = positional(
        "a folder with the files of the model, a package of Argos Translate, or a name on the Hugging Face hub",
        metavar="SOURCE",
    )
    output: Path = option("a new folder", metavar="RUN", is_required=True)
    src_lang: str | None = option(
        "source language, if the files do not name it; of a multilingual model, the default", metavar="CODE"
    )
    tgt_lang: str | None = option(
        "target language, if the files do not name it; of a multilingual model, the default", metavar="CODE"
    )
    languages: str | None = option(
        "keep only these languages of a multilingual model, separated by commas, such as eng_Latn,deu_Latn",
        metavar="CODES",
    )
    corpus: tuple[Path, ...] = option(
        "prune the vocabulary to the pieces and characters of this text file; repeat the option for more files",
        default=(),
        metavar="F",
    )

    def execute(self) -> None:
        """Run `tmt import`."""
        check_is_new(self.output)
        from transformer_mt.flows.import_model import import_model

        languages = (self.src_lang, self.tgt_lang, self.languages)
        print_text(*import_model(self.source, self.output, *languages, corpus=self.corpus))
        run = quote(str(self.output))
        print_text(f"tmt translate {run}                            # translate with it")
        print_text(f"tmt init SRC TGT --from {run} --out tuned.yaml  # fine-tune it; --replay SRC TGT: keep old pairs")
