"""`tmt init`: write a configuration for a corpus, with the reasons."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import ClassVar

from transformer_mt.cli.command import Command, flag, option, positional
from transformer_mt.cli.options import language, number
from transformer_mt.cli.table import print_text
from transformer_mt.errors import UserError
from transformer_mt.system.log import log


@dataclass(frozen=True, kw_only=True)
class Init(Command):
    """Write a configuration that trains on your sentence pairs.

    The command detects their languages, and chooses settings that suit their number. The pairs are in two text files,
    where line N of TGT translates line N of SRC, or in one file with both languages: a table (.tsv, .csv, .jsonl or
    .parquet), a translation memory (.tmx) or a Moses archive (.zip).
    """

    EXAMPLE: ClassVar[str] = "tmt init train.en train.de --out mine.yaml"

    src: Path = positional("source sentences, one per line (plain or compressed), or a file of pairs", metavar="SRC")
    tgt: Path | None = positional("their translations, line by line; not for a table", metavar="TGT", default=None)
    out: Path = option(
        "file to write (default: mine.yaml); the run gets its name", default=Path("mine.yaml"), metavar="X.yaml"
    )
    force: bool = flag("replace an existing file")
    src_lang: str | None = option("source language, such as en (default: detected)", metavar="L", parse=language)
    tgt_lang: str | None = option("target language (default: detected)", metavar="L", parse=language)
    columns: tuple[str, str] | None = option(
        "both columns of a table: names, or numbers from 1 if it has no header (default: the only two, those named as "
        "--src-lang and --tgt-lang, or those that are detected in two languages)",
        metavar=("SRC", "TGT"),
    )
    max_bad_rows: int = option(
        "rows that may be unreadable; they are listed and left out (default: 0)",
        metavar="N",
        parse=number(0),
        default=0,
    )
    validation: tuple[Path, Path] | None = option(
        "source and target file of the validation set (default: held-out training pairs)", metavar=("SRC", "TGT")
    )
    test: tuple[Path, Path] | None = option(
        "source and target file of the test set, which is scored after the training", metavar=("SRC", "TGT")
    )

    def execute(self) -> None:
        """Write the configuration, and print it."""
        from transformer_mt.flows.init import write_initial_config

        if self.columns and self.tgt is not None:
            raise UserError("--columns: belongs to a table, not to two text files; leave it out")
        config = write_initial_config(
            [self.src] if self.tgt is None else [self.src, self.tgt],
            self.out,
            force=self.force,
            src_lang=self.src_lang,
            tgt_lang=self.tgt_lang,
            columns=self.columns,
            max_bad_rows=self.max_bad_rows,
            ask=input if sys.stdin.isatty() and sys.stdout.isatty() else None,
            validation=self.validation or (),
            test=self.test or (),
        )
        print_text(config.text)
        sys.stdout.flush()
        for warning in config.warnings:
            log(f"tmt: warning: {warning}")
        out = quote(str(self.out))
        print_text(
            *(f"advice: {advice}" for advice in config.advice),
            f"{self.out} is written; next:",
            f"tmt check {out}           # misaligned lines, duplicates, damaged text",
            f"tmt plan {out}            # hours, memory and disk",
            f"tmt train --config {out}  # train",
        )
