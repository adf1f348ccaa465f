"""The options of the commands around training, such as init, check, train and bisect."""

from __future__ import annotations

import argparse
from pathlib import Path

from transformer_mt.cli.arguments import (
    CONFIG_FILE,
    add_config_file,
    add_json,
    add_overrides,
    add_run,
    add_run_or_config,
    add_tag,
    language,
    process_count,
)


def add_init(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt init`."""
    parser.description = (
        "Write a configuration that trains on your sentence pairs. The command detects their languages, and chooses "
        "settings that suit their number. The pairs are in two text files, where line N of TGT translates line N of "
        "SRC, or in one table (.tsv, .csv, .jsonl or .parquet) with a column for each language."
    )
    add = parser.add_argument
    add("src", type=Path, metavar="SRC", help="source sentences, one per line (plain or .gz), or a table of pairs")
    add("tgt", type=Path, nargs="?", metavar="TGT", help="their translations, line by line; not for a table")
    help = "file to write (default: mine.yaml); the run gets its name"
    add("--out", type=Path, default=Path("mine.yaml"), metavar="X.yaml", help=help)
    add("--force", action="store_true", help="replace an existing file")
    add("--src-lang", type=language, metavar="L", help="source language, such as en (default: detected)")
    add("--tgt-lang", type=language, metavar="L", help="target language (default: detected)")
    help = "names of both columns of a table (default: the only two, or those named as --src-lang and --tgt-lang)"
    add("--columns", nargs=2, metavar=("SRC", "TGT"), help=help)
    help = "source and target file of the validation set (default: held-out training pairs)"
    add("--validation", nargs=2, type=Path, default=(), metavar=("SRC", "TGT"), help=help)
    help = "source and target file of the test set, which is scored after the training"
    add("--test", nargs=2, type=Path, default=(), metavar=("SRC", "TGT"), help=help)


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt check`."""
    parser.description = (
        "Check the unfiltered training pairs, their overlap with the validation set and the test sets, and the "
        "line alignment of all sets. Print each problem with its count, up to three examples with file and line, and "
        "the filter of data.filters that removes it, or advice. Exit status: 0, or 1 with warnings, 2 with errors."
    )
    add = parser.add_argument
    add_run_or_config(parser)
    add_json(parser)
    add("--html", type=Path, metavar="FILE", help="also write the findings, with examples and histograms, as one page")
    help = "list the N training pairs of a RUN with the highest excess loss under its model, with a likely reason"
    lists = parser.add_mutually_exclusive_group().add_argument
    lists("--worst", type=int, metavar="N", help=help)
    help = "list the pairs that this filter of data.filters removes, one per line"
    lists("--show-removed", metavar="FILTER", help=help)
    help = (
        "write a repaired copy of data.train into a new folder: lines paired again, text cleaned, bad pairs dropped, "
        "with changes.tsv and a configuration that trains on it"
    )
    lists("--write", type=Path, metavar="FOLDER", help=help)
    add("--workers", type=process_count, default=1, metavar="N", help="processes (default: 1)")


def add_prepare(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt prepare`."""
    parser.description = (
        "Read the corpora of a configuration, apply data.filters, learn the vocabulary, and encode the pairs. The "
        "results are in data.cache_dir, so that `tmt train` of the same configuration starts at once. An interrupted "
        "command resumes. A training that starts meanwhile waits for the results."
    )
    add_config_file(parser)
    help = "processes that filter and encode (default: one per core); the result does not depend on it"
    parser.add_argument("--workers", type=process_count, metavar="N", help=help)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt plan`."""
    parser.description = (
        "Set up the training in a temporary folder, validate once, take 25 steps and save a checkpoint. Print "
        "parameters, memory, speed, hours, disk and export formats, and what to change if the training does not fit. "
        "The folder is deleted at the end. Other programs on the machine lower the measured speed."
    )
    add_config_file(parser)
    add_json(parser)


def add_train(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt train`."""
    help = f"{CONFIG_FILE}; it may also be the first argument, without --config"
    parser.add_argument("--config", type=Path, metavar="X.yaml", help=help)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--restart", action="store_true", help="start from scratch; the old run is renamed")
    help = "resume from this checkpoint (default: last), and delete later ones"
    add("--checkpoint", default="last", metavar="last|best|STEP", help=help)
    add_overrides(parser)


def add_correct(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt correct`."""
    parser.description = (
        "Fine-tune a run on corrected translations, mixed with its own training pairs. A checkpoint that loses too "
        "much BLEU on its validation pairs is refused. The result is a new run. The table has a column for each "
        "language, which its first line names."
    )
    add = parser.add_argument
    add_run(parser)
    help = "table of sources and corrected translations (.tsv, .csv, .jsonl or .parquet)"
    add("--pairs", type=Path, required=True, metavar="F", help=help)
    add("--name", metavar="NAME", help="name of the new run (default: RUN-corrected)")
    add("--steps", type=int, dest="max_steps", default=200, metavar="N", help="maximum number of steps (200)")
    help = "BLEU that the validation pairs may lose (1.5)"
    add("--max-bleu-drop", type=float, default=1.5, metavar="X", help=help)
    add_tag(parser)
    add_json(parser)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt runs`."""
    parser.description = (
        "List the runs at and below a folder: status, steps, best validation score, hours, parameters, size, languages "
        "and last change. Only small files are read; checkpoints are not verified. Lines below the table say why a run "
        "failed, or what is damaged."
    )
    add = parser.add_argument
    add("folder", type=Path, nargs="?", default=Path("runs"), metavar="FOLDER", help="default: runs")
    columns = ("name", "status", "steps", "score", "hours", "parameters", "size", "languages", "changed")
    help = f"{', '.join(columns)} (default: name); the best score, the largest number and the last change come first"
    add("--sort", choices=columns, default="name", metavar="COLUMN", help=help)
    add_json(parser)


def add_bisect(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tmt bisect`."""
    parser.description = (
        "Find the difference between two configurations that costs the score. Short trainings with half of the "
        "differences of BAD applied to GOOD, scored on the validation set of GOOD, narrow them down to one culprit. A "
        "training with the culprit alone verifies it. The same command resumes. Exit status 1: it verified no culprit."
    )
    add = parser.add_argument
    for name in ("good", "bad"):
        add(name, type=Path, metavar=name.upper(), help="a run folder or a configuration")
    add_overrides(parser)
    help = "steps of each training (default: a quarter of the shorter one, or twice the longer warm-up if that is more)"
    add("--steps", type=int, dest="n_steps", metavar="N", help=help)
    add("--work", type=Path, metavar="DIR", help="folder for the trainings (default: runs/bisect-GOOD-BAD)")
    add_json(parser)
