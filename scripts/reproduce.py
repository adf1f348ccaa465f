"""Train systems that papers report on Multi30k, from the text files to a table of scores.

    python scripts/reproduce.py multi30k --data DIR [--system NAME ...] [--pair en-de] [--seeds N] [--jobs N]
    python scripts/reproduce.py multi30k --data DIR --screen CHANGE [--screen CHANGE ...]

DIR contains Multi30k as raw text: train, val and test_2016_flickr, each as .en, .de, ... Each system is trained with N
seeds. For each seed, the newest checkpoints are averaged (for some systems, only the last is used) and scored on val
and test_2016_flickr. Then all seeds are scored as an ensemble. Systems (`--system` selects some):

    tiny       the system of the papers
    fast       close to `tiny` with half the tokens
    screened   `fast` with the changes that screening found, and half as many steps
    distilled  also trains on translations of the training text by two seeds of `screened`, and on back-translations;
               its hours do not include those of its teachers

Results go to runs/multi30k. The command resumes interrupted trainings and skips finished ones. `--jobs N` runs N
trainings at once, with one CPU thread each if N > 1. `section.key=value` overrides the configuration of all trainings;
use a separate working folder for that.

`--screen` trains `fast` unchanged and with one change at a time (`all`: each change). These runs are scored on val
only, so that no choice depends on the test set. The changes:
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import positive_int, run_script
from paper_bleu import LANGUAGES
from reproduce_tasks import existing_folder, mean_and_range, refuse_reserved_keys, run_tasks
from reproduce_work import (
    RUNS,
    TEST,
    VALIDATION,
    System,
    SystemRun,
    Text,
    ensemble_name,
    evaluate,
    is_up_to_date,
    read_score,
    write_preprocessed_texts,
)

TINY = System("tiny", "papers/multi30k_tiny.yaml", averaged=10)
FAST = System("fast", "papers/multi30k_fast.yaml", averaged=3)
SCREENED = System("screened", "papers/multi30k_screened.yaml", averaged=1)
LONG = ("--length-penalty", "2")  # translations as long as the references
BACK = Text("back", SCREENED, is_backtranslation=True)
DRAWN = Text("drawn", SCREENED, is_backtranslation=True, options=("--sample", "--top-k", "10"))
TAUGHT = Text("taught", SCREENED, seeds=2, options=LONG)
DRAWN_TAUGHT = TAUGHT._replace(name="drawn-taught", source=DRAWN)
DISTILLED = System("distilled", "papers/multi30k_distilled.yaml", averaged=1, texts=(TAUGHT, BACK, DRAWN, DRAWN_TAUGHT))
SYSTEMS = {system.name: system for system in (TINY, FAST, SCREENED, DISTILLED)}
CHANGES = {
    "nothing": (),
    "adam": ("optimizer.kind=adam",),
    "post-norm": ("model.norm_position=post",),
    "inverse-sqrt": ("schedule.kind=inverse_sqrt",),
    "wsd": ("schedule.kind=wsd",),
    "peak-2e-3": ("schedule.peak=2e-3",),
    "peak-8e-3": ("schedule.peak=8e-3",),
    "batch-2048": ("batches.tokens=2048",),
    "batch-8192": ("batches.accumulate=2",),
    "merges-2000": ("tokenizer.merges=2000",),
    "merges-4000": ("tokenizer.merges=4000",),
    "bpe-dropout": ("tokenizer.sampling=0.1",),
    "width-192": ("model.d_model=192", "model.d_ff=384"),
    "width-256": ("model.d_model=256", "model.d_ff=512"),
    "layers-6": ("model.encoder.n_layers=6", "model.decoder.n_layers=6"),
    "rotary": ("model.positions=rotary",),
    "swiglu": ("model.activation=swiglu",),
    "source-untied": ("model.tie_embeddings=decoder",),
    "dropout-0.1": ("model.dropout.embedding=0.1", "model.dropout.residual=0.1"),
    "dropout-0.3": ("model.dropout.embedding=0.3", "model.dropout.residual=0.3"),
    "word-dropout": ("model.dropout.word=0.1",),
    "smoothing-0": ("loss.label_smoothing=0",),
    "smoothing-0.2": ("loss.label_smoothing=0.2",),
}
"""Overrides of `fast` to screen, by name."""


def main() -> None:
    args = read_arguments()
    for lang in args.pair:
        write_preprocessed_texts(args.data, lang)
    if args.screen:
        names = dict.fromkeys(["nothing", *(CHANGES if "all" in args.screen else args.screen)])
        systems = [FAST._replace(name=f"screen-{name}", overrides=CHANGES[name]) for name in names]
        scored, make_rows = (VALIDATION,), screening_rows
    else:
        systems = [SYSTEMS[name] for name in dict.fromkeys(args.system or SYSTEMS)]
        scored, make_rows = (VALIDATION, TEST), system_rows
    systems = [system.with_overrides(args.overrides) for system in systems]
    seeds, threads = range(1, args.seeds + 1), 1 if args.jobs > 1 else None
    src_lang, tgt_lang = args.pair
    by_system = [[SystemRun(system, seed, src_lang, tgt_lang, scored, threads) for seed in seeds] for system in systems]
    run_tasks([work for works in by_system for work in works], args.jobs)
    for line in make_rows(by_system):
        print(line, flush=True)


def read_arguments() -> argparse.Namespace:
    about = f"{__doc__}\n" + "\n".join(f"    {name:15}{' '.join(changes)}" for name, changes in CHANGES.items())
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["multi30k"])
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides for all trainings")
    parser.add_argument("--data", type=existing_folder, required=True, metavar="DIR", help="folder of the raw text")
    parser.add_argument("--pair", type=pair, default="en-de", metavar="SRC-TGT", help="the languages (default: en-de)")
    parser.add_argument(
        "--seeds", type=positive_int, metavar="N", help="train with seeds 1 to N (default: 3; with --screen: 1)"
    )
    about = "parallel trainings (default: 1); with one CPU thread each if N > 1"
    parser.add_argument("--jobs", type=positive_int, default=1, metavar="N", help=about)
    about = "a system (default: all); may be repeated"
    parser.add_argument("--system", action="append", choices=SYSTEMS, metavar="NAME", help=about)
    about = "train `fast` with this change, score on val only; may be repeated; all: every change"
    parser.add_argument("--screen", action="append", choices=["all", *CHANGES], metavar="CHANGE", help=about)
    args = parser.parse_intermixed_args()
    if args.screen and args.system:
        parser.error("--screen trains `fast`: leave out --system")
    refuse_reserved_keys(parser, args.overrides)
    args.seeds = args.seeds or (1 if args.screen else 3)
    return args


def pair(text: str) -> tuple[str, str]:
    """Parse two different languages of Multi30k."""
    src_lang, hyphen, tgt_lang = text.partition("-")
    if not hyphen or src_lang == tgt_lang or not {src_lang, tgt_lang} <= set(LANGUAGES):
        raise argparse.ArgumentTypeError(f"{text}: name two of {', '.join(LANGUAGES)}, such as en-de")
    return src_lang, tgt_lang


# --- tables -----------------------------------------------------------------------------------------------------------


def system_rows(systems: Sequence[Sequence[SystemRun]]) -> Iterator[str]:
    """Yield two rows for each system: mean and range over its seeds, and the ensemble of all seeds."""
    yield "| system | P, val | P, test | sacreBLEU | chrF++ | TER | parameters | hours | seeds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for works in systems:
        n, name, (millions, hours) = len(works), works[0].system.name, parameters_and_hours(works)
        each = {part: [work.scores_file(part) for work in works] for part in works[0].scored}
        yield row(f"`{name}`", each, millions, hours, str(n))
        if n > 1:
            ensemble = {part: [ensemble_scores_file(works, part)] for part in works[0].scored}
            yield row(f"`{name}`, ensemble", ensemble, millions * n, [sum(hours)], f"{n} together")


def row(system: str, scores: dict[str, list[Path]], millions: float, hours: list[float], seeds: str) -> str:
    """Format a row of the table. scores: files by part of the corpus."""
    columns = [(VALIDATION, "p"), (TEST, "p"), *((TEST, metric) for metric in ("bleu", "chrf++", "ter"))]
    figures = [mean_and_range([read_score(file, metric) for file in scores[part]]) for part, metric in columns]
    return f"| {' | '.join([system, *figures, f'{millions:.2f} M', mean_and_range(hours), seeds])} |"


def ensemble_scores_file(works: Sequence[SystemRun], part: str) -> Path:
    """Score the ensemble of all seeds unless its scores are up to date, and return their file."""
    each = [work.scores_file(part) for work in works]
    scores = RUNS / f"{ensemble_name(works)}-{part}.json"
    if not is_up_to_date(scores, each):
        evaluate(works, part, scores)
    return scores


def screening_rows(systems: Sequence[Sequence[SystemRun]]) -> Iterator[str]:
    """Yield a row for each change: mean and range over its seeds, and the gain over the unchanged system (first)."""
    yield "| changed | P, val | gain | parameters | hours |"
    yield "|---|---|---|---|---|"
    scores = [[read_score(work.scores_file(VALIDATION), "p") for work in works] for works in systems]
    for works, values in zip(systems, scores, strict=True):
        millions, hours = parameters_and_hours(works)
        gain = statistics.mean(values) - statistics.mean(scores[0])
        name = works[0].system.name.removeprefix("screen-")
        yield f"| {name} | {mean_and_range(values)} | {gain:+.2f} | {millions:.2f} M | {mean_and_range(hours)} |"


def parameters_and_hours(works: Sequence[SystemRun]) -> tuple[float, list[float]]:
    """Return the number of parameters in millions, and the hours of each seed."""
    records = [work.run.read_record() for work in works]
    return records[0].parameters / 1e6, [record.hours or math.nan for record in records]


if __name__ == "__main__":
    run_script(main)
