"""`tmt init`: write a configuration for a corpus, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from transformer_mt.cli.command import Command, flag, list_given_flags, option, positional
from transformer_mt.cli.options import language, number
from transformer_mt.cli.table import print_table, print_text
from transformer_mt.errors import UserError
from transformer_mt.system.log import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformer_mt.flows.init import InitialConfig


@dataclass(frozen=True, kw_only=True)
class Init(Command):
    """Write a configuration that trains on your sentence pairs.

    The command detects their languages, and chooses settings that suit their number. The pairs are in two text files,
    where line N of TGT translates line N of SRC, or in one file with both languages: a table (.tsv, .csv, .jsonl or
    .parquet), a translation memory (.tmx) or a Moses archive (.zip).

    With --preset, it writes a configuration that ships with the program; quickstart trains without files and network.

    With --from, the configuration fine-tunes a trained or imported run: it repeats some of the run's own pairs, and
    refuses a checkpoint that forgets them. Its text is in a folder beside it, such as mine-data.
    """

    EXAMPLE: ClassVar[str] = "tmt init train.en train.de --out mine.yaml"

    src: Path | None = positional(
        "source sentences, one per line (plain or compressed), or a file of pairs", metavar="SRC", default=None
    )
    tgt: Path | None = positional("their translations, line by line; not for a table", metavar="TGT", default=None)
    out: Path | None = option(
        "file to write (default: mine.yaml, or the name of the preset); the run gets its name", metavar="X.yaml"
    )
    force: bool = flag("replace an existing file, and with --from its folder of text")
    src_lang: str | None = option(
        "source language, such as en (default: detected; with --from: that of the run)", metavar="L", parse=language
    )
    tgt_lang: str | None = option("target language (default: as for --src-lang)", metavar="L", parse=language)
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
    preset: str | None = option(
        "write the preset of this name; without a name: list the presets", metavar="NAME", bare=""
    )
    validation: tuple[Path, ...] = option(
        "source and target file of the validation set, or one table (default: held-out training pairs)",
        metavar=("SRC", "TGT"),
        default=(),
        takes_list=True,
    )
    test: tuple[Path, ...] = option(
        "source and target file of the test set, or one table; it is scored after the training",
        metavar=("SRC", "TGT"),
        default=(),
        takes_list=True,
    )

    start: Path | None = option("run to fine-tune on the pairs", metavar="RUN", flag="--from")
    tag: str | None = option("with --from: tag of the new pairs (new ones need --extend-vocabulary)", metavar="TAG")
    replay: tuple[Path, ...] = option(
        "with --from: source and target file of old pairs in the direction of --tag, or one table (default: 20,000 "
        "training pairs of the run)",
        metavar=("SRC", "TGT"),
        default=(),
        takes_list=True,
    )

    extend_vocabulary: int | None = option(
        "with --from: add up to N pieces of the new text to the vocabulary, for a new language or domain",
        metavar="N",
        parse=number(1),
    )

    def execute(self) -> None:
        """Write the configuration, and print what to do next."""
        if self.start is None and (given := {*list_given_flags(self)} & {"--tag", "--replay", "--extend-vocabulary"}):
            raise UserError(f"{min(given)}: belongs to --from RUN; leave it out")
        if self.preset is not None:
            self._use_preset(self.preset)
        else:
            self._print(self._inspect())

    @property
    def output(self) -> Path:
        """The file to write."""
        return self.out or Path(f"{self.preset or 'mine'}.yaml")

    def _use_preset(self, name: str) -> None:
        from transformer_mt.flows.configuration import list_presets
        from transformer_mt.flows.init import read_preset_comment, write_preset

        if others := {*list_given_flags(self)} - {"--preset", "--out", "--force"}:
            raise UserError(
                f"{min(others)}: has no effect with --preset; leave it out, or write it into the configuration"
            )
        if self.src is not None:
            raise UserError(f"{self.src}: cannot be combined with --preset; add it to the configuration afterwards")
        if name:
            self._print(write_preset(name, self.output, force=self.force))
        elif self.out or self.force:
            raise UserError("--preset: needs a name to write a file, such as --preset quickstart")
        else:
            rows = [(preset, read_preset_comment(path)[0]) for preset, path in list_presets().items()]
            print_table(["preset", "description"], rows)
            print_text("tmt init --preset NAME --out FILE writes one")

    def _inspect(self) -> InitialConfig:
        from transformer_mt.flows.init import write_initial_config

        lists = {"--validation": self.validation, "--test": self.test, "--replay": self.replay}
        for name, given in lists.items():
            if len(given) > 2:
                raise UserError(f"{name}: takes one table or two text files, not {len(given)}; put other files first")
        if self.src is None:
            raise UserError("pass two text files, a file of pairs, or --preset; see tmt init --help")
        if self.columns and self.tgt is not None and 1 not in map(len, lists.values()):
            raise UserError("--columns: belongs to a table, not to two text files; leave it out")
        files = [self.src] if self.tgt is None else [self.src, self.tgt]
        if self.start is not None:
            return self._fine_tune(self.start, files)
        return write_initial_config(
            files,
            self.output,
            force=self.force,
            src_lang=self.src_lang,
            tgt_lang=self.tgt_lang,
            columns=self.columns,
            max_bad_rows=self.max_bad_rows,
            validation=self.validation,
            test=self.test,
        )

    def _fine_tune(self, run: Path, files: Sequence[Path]) -> InitialConfig:
        from transformer_mt.flows.fine_tuning import FineTuningInput, write_fine_tuning_config
        from transformer_mt.runs.folder import RunFolder

        given = FineTuningInput(
            files,
            self.validation,
            self.test,
            self.replay,
            src_lang=self.src_lang,
            tgt_lang=self.tgt_lang,
            tag=self.tag,
            columns=self.columns,
            max_bad_rows=self.max_bad_rows,
            extend_vocabulary=self.extend_vocabulary,
        )
        return write_fine_tuning_config(RunFolder.open(run), given, self.output, force=self.force)

    def _print(self, config: InitialConfig) -> None:
        for warning in config.warnings:
            log(f"tmt: warning: {warning}")
        out = quote(str(self.output))
        print_text(
            *(f"advice: {advice}" for advice in config.advice),
            f"{self.output} is written: {config.summary}; next:",
            f"tmt check {out}           # misaligned lines, duplicates, damaged text",
            f"tmt plan {out}            # hours and memory",
            f"tmt train --config {out}  # train",
        )
