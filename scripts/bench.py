"""Measure training: its speed beside a plain loop, its share of what the machine can do, and its memory over time; and
translating, beside another engine (`decode`, see bench_decode.py).

    python scripts/bench.py train [--src F --tgt G] [--precision fp32|bf16] [--steps N] [--rounds N] [section.key=value]
    python scripts/bench.py memory [--src F --tgt G] [--precision fp32|bf16] [--steps N] [section.key=value]

The work: joint vocabulary of 8,000, 3 + 3 layers, d_model 256, d_ff 1024, 4 heads, dropout 0.1, tied embeddings, label
smoothing 0.1, batches of about 4,096 padded target tokens; overrides (`threads=1 model.d_model=128`) change it for all.

train: the same batches on both sides, each in a process of its own, and they take turns, so that only the ratio depends
on the machine. The other side is a loop over `torch.nn.Transformer` with torch's defaults, in fp32 on a CPU and in the
same precision on a GPU. Also printed: how much of the batches is padding, and model FLOPs utilisation, the share of the
measured rate of a large matrix product that the model's own products make up (see `model_flops`).

memory: the trainer's own update on batch after batch of the stream, epoch after epoch, so with ever new shapes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import bench_decode
import torch
import yaml
from bench_ceiling import DTYPES, PRODUCT, model_flops, product_rate, synchronise
from bench_student import Step, student_machine, student_step
from trainings import positive, run_script

from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config
from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.data.corpus import load_corpus
from transformer_mt.data.encoding import LengthLimit, encode_corpus
from transformer_mt.data.tokenizers import tokenizer
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline.train import make_train_step
from transformer_mt.system.device import configure_process, resolve_machine
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.schedule import make_schedule

SIDES = ("student", "ours")
WARM_UP = 5  # steps that are not counted
BUILTIN = {"builtin": "quickstart"}
LOOKS = (100, 500, 1000, 2000, 5000)  # steps after which memory is looked at


def main() -> None:
    if sys.argv[1:2] == ["decode"]:
        bench_decode.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "memory"])
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes of the work")
    parser.add_argument("--src", help="source sentences (default: the built-in corpus)")
    parser.add_argument("--tgt", help="their translations")
    parser.add_argument("--rounds", type=positive, default=5, help="how often the sides take turns")
    parser.add_argument("--steps", type=positive, help="counted steps of a turn (15), or of the look at memory (5,000)")
    parser.add_argument("--precision", help="of our side (the configuration's)")
    parser.add_argument("--side", choices=[*SIDES, "memory"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    if bool(args.src) != bool(args.tgt):
        parser.error("--src and --tgt go together")
    if args.side == "memory":
        watch_memory(args.folder, args.precision, args.steps)
    elif args.side:
        print(run_side(args.side, args.folder, args.precision))
    else:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = work(folder, args.src, args.tgt, args.overrides)
            precision = args.precision or config.precision
            resolve_machine(
                config.device, precision, config.threads
            )  # says what there is not, before others run into it
            if args.what == "train":
                prepare(folder, config, args.steps or 15)
                compare(folder, args.rounds, precision)
            else:
                prepare(folder, config, steps=0)
                steps = str(args.steps or 5000)
                subprocess.run([*side_command("memory", folder, precision), "--steps", steps], check=True)


def compare(folder: Path, rounds: int, precision: str) -> None:
    """Let the sides take turns, and print tokens per second, the ratio, and what is behind them."""
    flops, rates, used = describe_work(folder, precision)
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(rounds):
        for side in SIDES:
            speeds[side].append(measure_side(side, folder, precision))
        ratio = speeds["ours"][-1] / speeds["student"][-1]
        print(f"turn {turn + 1}: " + "  ".join(f"{s} {speeds[s][-1]:,.0f}" for s in SIDES) + f"  ratio {ratio:.2f}")
    ratios = [ours / student for ours, student in zip(speeds["ours"], speeds["student"], strict=True)]
    for side in SIDES:
        speed = statistics.median(speeds[side])
        share = f"{speed * flops / rates[used[side]]:.1%} of the {used[side]} rate"
        print(f"{side:8} {speed:8,.0f} target tokens/s (median of {rounds}), {share}")
    print(f"ratio    {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def side_command(side: str, folder: Path, precision: str) -> list[str]:
    """What runs one side in a process of its own."""
    return [sys.executable, __file__, "train", "--folder", str(folder), "--precision", precision, "--side", side]


def measure_side(side: str, folder: Path, precision: str) -> float:
    """Target tokens per second of one side, in a process of its own."""
    done = subprocess.run(side_command(side, folder, precision), check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


# --- the work ---------------------------------------------------------------------------------------------------------


def work(folder: Path, src: str | None, tgt: str | None, overrides: list[str]) -> Config:
    """The fixed work as a configuration, changed by overrides."""
    source = {"src": str(Path(src).resolve()), "tgt": str(Path(tgt).resolve())} if src and tgt else BUILTIN
    file = folder / "work.yaml"
    file.write_text(yaml.safe_dump({"data": {"src_lang": "en", "tgt_lang": "de", "train": source}}), encoding="utf-8")
    config = configuration.load(file, overrides)
    return config.model_copy(update={"schedule": config.schedule.ending(config.train.max_steps)})


def prepare(folder: Path, config: Config, steps: int) -> None:
    """Write the configuration, the tokenizer and the batches that all sides are to use."""
    folder.mkdir(exist_ok=True)
    table = load_corpus(config.data.train, "en", "de", folder)
    tokenizers = tokenizer.build_tokenizers(config.tokenizer, table)
    tokenizers.save(folder / "tokenizer.json")
    batches, _ = make_stream(config, tokenizers, folder).take(StreamPosition(), steps + WARM_UP)
    torch.save([(b.src, b.tgt_in, b.labels, b.n_src, b.n_tgt) for b in batches], folder / "batches.pt")
    (folder / "config.yaml").write_text(render_yaml(config), encoding="utf-8")


def make_stream(config: Config, tokenizers: TokenizerPair, folder: Path) -> BatchStream:
    """The batches of the work, as training has them."""
    table = load_corpus(config.data.train, "en", "de", folder)
    encoded = encode_corpus(table, tokenizers, LengthLimit(config.data.max_length, "drop"), folder)
    return BatchStream(encoded, tokenizers, config.batches.budget, config.seed)


def read(folder: Path) -> tuple[Config, TokenizerPair, list[Batch]]:
    """What was prepared."""
    batches = [Batch(*parts) for parts in torch.load(folder / "batches.pt")]
    return configuration.load(folder / "config.yaml"), TokenizerPair.load(folder / "tokenizer.json"), batches


# --- what is behind the figures ---------------------------------------------------------------------------------------


def describe_work(folder: Path, precision: str) -> tuple[float, dict[str, float], dict[str, str]]:
    """Print padding, FLOPs and rates. Returns FLOPs per target token, the rates, and each side's precision."""
    config, tokenizers, batches = read(folder)
    batches = batches[WARM_UP:]
    sides = [b.src for b in batches], [b.labels for b in batches]
    src, tgt = lengths(sides[0], tokenizers.src.pad_id), lengths(sides[1], tokenizers.tgt.pad_id)
    padding = [1 - sum(real) / sum(ids.numel() for ids in side) for real, side in zip((src, tgt), sides, strict=True)]
    print(f"padding  {padding[0]:.1%} of the source cells, {padding[1]:.1%} of the target cells")
    flops = model_flops(config.model, tokenizers.tgt.vocab_size, src, tgt) / sum(tgt)
    print(f"model    {flops / 1e6:,.1f} MFLOP a target token (forward and backward)")
    machine = resolve_machine(config.device, precision, config.threads)
    configure_process(machine)
    rates = {name: product_rate(machine.device, dtype) for name, dtype in DTYPES.items()}
    shape = " x ".join(map(str, PRODUCT[machine.device.type]))
    shown = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in rates.items())
    print(f"machine  {shown} GFLOP/s in a matrix product of {shape}; {machine.threads} threads, {machine.device}")
    return flops, rates, {"ours": machine.precision, "student": student_machine(config, precision).precision}


def lengths(batches: list[torch.Tensor], pad: int) -> list[int]:
    """The ids of each sentence that are not padding, counted."""
    return [int(n) for ids in batches for n in (ids != pad).sum(1)]


# --- memory -----------------------------------------------------------------------------------------------------------


def watch_memory(folder: Path, precision: str, steps: int) -> None:
    """Take steps, and print resident memory at some of them and the speed by the thousand."""
    config, tokenizers, _ = read(folder)
    stream, step = make_stream(config, tokenizers, folder), our_step(config, tokenizers, precision)
    position, shapes, resident = StreamPosition(), set[tuple[int, ...]](), dict[int, int]()
    tokens, began = 0, time.perf_counter()
    for number in range(1, steps + 1):
        (batch,), position = stream.take(position, 1)
        step(batch)
        tokens += batch.n_tgt
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        if number in LOOKS or number == steps:
            resident[number] = resident_bytes()
            print(
                f"step {number:5,}: {resident[number] / 2**20:8,.1f} MiB resident, {len(shapes):,} shapes", flush=True
            )
        if number % 1000 == 0:
            seconds = time.perf_counter() - began
            print(f"steps {number - 999:,} to {number:,}: {tokens / seconds:,.0f} target tokens/s", flush=True)
            tokens, began = 0, time.perf_counter()
    if steps > 500:
        print(f"step {steps:,} over step 500: {resident[steps] / resident[500]:.3f}")


def resident_bytes() -> int:
    """What of this process lies in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- the sides --------------------------------------------------------------------------------------------------------


def run_side(side: str, folder: Path, precision: str) -> float:
    """Non-padding target tokens per second of one side."""
    config, tokenizers, batches = read(folder)
    machine = resolve_machine(config.device, precision, config.threads)
    configure_process(machine)
    torch.manual_seed(config.seed)
    step = {"ours": our_step, "student": student_step}[side](config, tokenizers, precision)
    for batch in batches[:WARM_UP]:
        step(batch)
    synchronise(machine.device)
    began = time.perf_counter()
    for batch in batches[WARM_UP:]:
        step(batch)
    synchronise(machine.device)
    return sum(batch.n_tgt for batch in batches[WARM_UP:]) / (time.perf_counter() - began)


def our_step(config: Config, tokenizers: TokenizerPair, precision: str) -> Step:
    """One update of ours, on a batch."""
    machine = resolve_machine(config.device, precision, config.threads)
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt).to(machine.device)
    updater = make_train_step(config, machine, Ranks(), model, halve=lambda batch: [])
    schedule, steps = make_schedule(config.schedule, config.model.d_model), count(1)

    def step(batch: Batch) -> None:
        number = next(steps)
        updater.update(number, schedule(number), [batch])

    return step


if __name__ == "__main__":
    run_script(main)
