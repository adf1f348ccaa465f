"""Train what papers report on Multi30k, from the text files to a table of scores.

    python scripts/reproduce.py multi30k --data DIR [--system NAME ...] [--pair en-de] [--seeds N] [--jobs N]
    python scripts/reproduce.py multi30k --data DIR --screen LEVER [--screen LEVER ...]

DIR holds Multi30k as raw text: train, val and test_2016_flickr, each as .en, .de, ... Each system is trained with N
seeds, the newest checkpoints of each are averaged (of some, the last is taken alone), and that is scored on val and
test_2016_flickr; then all seeds together, as an ensemble. The systems: `tiny` is the papers'; `fast` comes near it with
half the tokens; `screened` is `fast` with what its screening found, for half as many steps; `distilled` learns also
from what two seeds of `screened` and one of the other direction make of the training text. The hours of teachers are
not counted in its own. `--system` asks for some of them alone. All goes to runs/multi30k; a training that was begun
goes on, and what is done is not done again, so the command may be stopped at any time. `--jobs N` makes N trainings at
once, each with one CPU thread where N is above 1. `section.key=value` changes all trainings: for a trial, in a working
folder of its own.

`--screen` trains `fast` as it is and with one thing changed: a lever, or each of them (`all`). These are scored on val
alone: what is chosen so has never seen the test set. The levers:
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reproduce_work import (
    RUNS,
    TEST,
    VALIDATION,
    System,
    Text,
    Work,
    evaluate,
    is_newer,
    measured,
    together,
    write_papers_texts,
)
from trainings import do_all, folder, positive, refuse_own, run_script, spread

from transformer_mt.evaluation import paper_bleu

TINY = System("tiny", "papers/multi30k_tiny.yaml", averaged=10)
FAST = System("fast", "papers/multi30k_fast.yaml", averaged=3)
SCREENED = System("screened", "papers/multi30k_screened.yaml", averaged=1)
AS_LONG = ("--length-penalty", "2")  # as the references are
BACK = Text("back", SCREENED, backward=True)
DRAWN = Text("drawn", SCREENED, backward=True, options=("--sample", "--top-k", "10"))
TAUGHT = Text("taught", SCREENED, seeds=2, options=AS_LONG)
DRAWN_TAUGHT = TAUGHT._replace(name="drawn-taught", source=DRAWN)
DISTILLED = System("distilled", "papers/multi30k_distilled.yaml", averaged=1, texts=(TAUGHT, BACK, DRAWN, DRAWN_TAUGHT))
SYSTEMS = {system.name: system for system in (TINY, FAST, SCREENED, DISTILLED)}
LEVERS = {
    "nothing": (),
    "adam": ("optimizer.kind=adam",),
    "post-norm": ("model.norm_position=post",),
    "inverse-sqrt": ("schedule.kind=inverse_sqrt",),
    "wsd": ("schedule.kind=wsd",),
    "ema": ("optimizer.ema_decay=0.999",),
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
    "simcut": ("loss.consistency=simcut",),
    "r-drop": ("loss.consistency=rdrop",),
}
"""What is tried, by a short name: each is a change of `fast`."""


def main() -> None:
    args = read_arguments()
    for lang in args.pair:
        write_papers_texts(args.data, lang)
    if args.screen:
        names = dict.fromkeys(["nothing", *(LEVERS if "all" in args.screen else args.screen)])
        systems = [FAST._replace(name=f"screen-{name}", changes=LEVERS[name]) for name in names]
        scored, show = (VALIDATION,), screening
    else:
        systems = [SYSTEMS[name] for name in dict.fromkeys(args.system or SYSTEMS)]
        scored, show = (VALIDATION, TEST), table
    systems = [system.changed(args.overrides) for system in systems]
    seeds, threads = range(1, args.seeds + 1), 1 if args.jobs > 1 else None
    src_lang, tgt_lang = args.pair
    by_system = [[Work(system, seed, src_lang, tgt_lang, scored, threads) for seed in seeds] for system in systems]
    do_all([work for works in by_system for work in works], args.jobs)
    for line in show(by_system):
        print(line, flush=True)


def read_arguments() -> argparse.Namespace:
    about = f"{__doc__}\n" + "\n".join(f"    {name:15}{' '.join(changes)}" for name, changes in LEVERS.items())
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=["multi30k"])
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes of all trainings")
    parser.add_argument("--data", type=folder, required=True, metavar="DIR", help="folder of the raw text")
    parser.add_argument("--pair", type=pair, default="en-de", metavar="SRC-TGT", help="the languages (default: en-de)")
    parser.add_argument(
        "--seeds", type=positive, metavar="N", help="runs of each, with seeds 1, 2, ... (3; --screen: 1)"
    )
    about = "trainings at once (1); from 2 on with one CPU thread each"
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help=about)
    about = "one of the systems (all); may be repeated"
    parser.add_argument("--system", action="append", choices=SYSTEMS, metavar="NAME", help=about)
    about = "`fast` with this changed, on val alone; may be repeated; all: one after the other"
    parser.add_argument("--screen", action="append", choices=["all", *LEVERS], metavar="LEVER", help=about)
    args = parser.parse_intermixed_args()
    if args.screen and args.system:
        parser.error("--screen is of `fast`: leave --system out")
    refuse_own(parser, args.overrides)
    args.seeds = args.seeds or (1 if args.screen else 3)
    return args


def pair(text: str) -> tuple[str, str]:
    """Two of the languages of Multi30k."""
    src_lang, hyphen, tgt_lang = text.partition("-")
    if not hyphen or src_lang == tgt_lang or not {src_lang, tgt_lang} <= set(paper_bleu.LANGUAGES):
        raise argparse.ArgumentTypeError(f"{text}: two of {', '.join(paper_bleu.LANGUAGES)}, such as en-de")
    return src_lang, tgt_lang


# --- tables -----------------------------------------------------------------------------------------------------------


def table(systems: Sequence[Sequence[Work]]) -> Iterator[str]:
    """Two rows for each system: the mean of its seeds, with the least and the most of them, and all seeds together."""
    yield "| system | P, val | P, test | sacreBLEU | chrF++ | TER | parameters | hours | seeds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for works in systems:
        n, name, (millions, hours) = len(works), works[0].system.name, costs(works)
        each = {part: [work.scores_file(part) for work in works] for part in works[0].scored}
        yield row(f"`{name}`", each, millions, hours, str(n))
        if n > 1:
            ensemble = {part: [scores_together(works, part)] for part in works[0].scored}
            yield row(f"`{name}`, ensemble", ensemble, millions * n, [sum(hours)], f"{n} together")


def row(system: str, scores: dict[str, list[Path]], millions: float, hours: list[float], seeds: str) -> str:
    """Of the table; the scores by part of the corpus."""
    columns = [(VALIDATION, "p"), (TEST, "p"), *((TEST, metric) for metric in ("bleu", "chrf++", "ter"))]
    figures = [spread([measured(file, metric) for file in scores[part]]) for part, metric in columns]
    return f"| {' | '.join([system, *figures, f'{millions:.2f} M', spread(hours), seeds])} |"


def scores_together(works: Sequence[Work], part: str) -> Path:
    """Those of all seeds of a system as an ensemble: found anew where one of the seeds was."""
    each = [work.scores_file(part) for work in works]
    scores = RUNS / f"{together(works)}-{part}.json"
    if not is_newer(scores, each):
        evaluate(works, part, scores)
    return scores


def screening(systems: Sequence[Sequence[Work]]) -> Iterator[str]:
    """A row for each lever: the mean of its seeds, and how far it is from nothing changed, which comes first."""
    yield "| changed | P, val | gain | parameters | hours |"
    yield "|---|---|---|---|---|"
    scores = [[measured(work.scores_file(VALIDATION), "p") for work in works] for works in systems]
    for works, values in zip(systems, scores, strict=True):
        millions, hours = costs(works)
        gain = statistics.mean(values) - statistics.mean(scores[0])
        what = works[0].system.name.removeprefix("screen-")
        yield f"| {what} | {spread(values)} | {gain:+.2f} | {millions:.2f} M | {spread(hours)} |"


def costs(works: Sequence[Work]) -> tuple[float, list[float]]:
    """Millions of parameters, and the hours that each seed took."""
    records: list[dict[str, Any]] = [work.run.read_metadata() for work in works]
    return records[0]["parameters"] / 1e6, [record["hours"] for record in records]


if __name__ == "__main__":
    run_script(main)
