"""Benchmark training speed against a plain loop, and memory over time.

For `decode` and `contention` see bench_decode.py and bench_contention.py.

    python scripts/bench.py train [--src F --tgt G] [--precision P] [--steps N] [--rounds N] [section.key=value]
    python scripts/bench.py memory [--src F --tgt G] [--precision P] [--steps N] [section.key=value]

The workload: joint vocabulary of 8,000, 3 + 3 layers, d_model 256, d_ff 1024, 4 heads, dropout 0.1, tied embeddings,
label smoothing 0.1, batches of about 4,096 padded target tokens. Overrides (`threads=1 model.d_model=128`) change it.

train: compares our training step with a baseline, on the same batches. Each runs in its own subprocess, in interleaved
rounds, so that their ratio hardly depends on the machine. The baseline is a loop over `torch.nn.Transformer` with
PyTorch's defaults, in fp32 on a CPU and in our precision on a GPU. Also prints the share of padding, and model FLOPs
utilisation: the model's matrix products (see `model_flops`) as a share of the peak rate of one large product.

memory: runs our training step on batch after batch of several epochs, with ever new shapes, and prints resident memory.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import bench_contention
import bench_decode
import torch
import yaml
from bench_baseline import (
    DTYPES,
    PRODUCT,
    Step,
    baseline_machine,
    baseline_step,
    model_flops,
    product_rate,
    synchronise,
)
from common import positive_int, read_resident_bytes, run_script

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.batches import Batch, BatchStream, StreamPosition
from transformer_mt.data.encoding import LengthLimit, encode_corpus
from transformer_mt.data.sources import load_corpus
from transformer_mt.data.tokenizers import trainers
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.train import make_train_step
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import configure_process, resolve_machine
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.training_config import make_schedule

SIDES = ("baseline", "ours")
WARM_UP = 5  # steps before the measurement
BUILTIN = {"builtin": "quickstart"}
MEMORY_STEPS = (100, 500, 1000, 2000, 5000)  # steps at which memory is printed


def main() -> None:
    others = {"decode": bench_decode.main, "contention": bench_contention.main}
    if sys.argv[1:2] and sys.argv[1] in others:
        others[sys.argv[1]](sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "memory"])
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of the workload")
    parser.add_argument("--src", help="source sentences (default: the built-in corpus)")
    parser.add_argument("--tgt", help="their translations")
    parser.add_argument("--rounds", type=positive_int, default=5, help="interleaved rounds")
    parser.add_argument("--steps", type=positive_int, help="measured steps per round (train: 15; memory: 5,000)")
    parser.add_argument("--precision", help="precision of our side (default: as configured)")
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
            config = make_workload(folder, args.src, args.tgt, args.overrides)
            precision = args.precision or config.precision
            resolve_machine(
                config.device, precision, config.threads
            )  # fail early if the device or the precision is not available
            if args.what == "train":
                prepare(folder, config, args.steps or 15)
                compare(folder, args.rounds, precision)
            else:
                prepare(folder, config, steps=0)
                steps = str(args.steps or 5000)
                subprocess.run([*side_command("memory", folder, precision), "--steps", steps], check=True)


def compare(folder: Path, rounds: int, precision: str) -> None:
    """Measure both sides in interleaved rounds, and print tokens per second and their ratio."""
    flops, rates, used = describe_workload(folder, precision)
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES:
            speeds[side].append(measure_side(side, folder, precision))
        ratio = speeds["ours"][-1] / speeds["baseline"][-1]
        print(f"round {number + 1}: " + "  ".join(f"{s} {speeds[s][-1]:,.0f}" for s in SIDES) + f"  ratio {ratio:.2f}")
    ratios = [ours / baseline for ours, baseline in zip(speeds["ours"], speeds["baseline"], strict=True)]
    for side in SIDES:
        speed = statistics.median(speeds[side])
        share = f"{speed * flops / rates[used[side]]:.1%} of the {used[side]} rate"
        print(f"{side:8} {speed:8,.0f} target tokens/s (median of {rounds}), {share}")
    print(f"ratio    {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def side_command(side: str, folder: Path, precision: str) -> list[str]:
    """Return the command that measures one side."""
    return [sys.executable, __file__, "train", "--folder", str(folder), "--precision", precision, "--side", side]


def measure_side(side: str, folder: Path, precision: str) -> float:
    """Measure target tokens per second of one side in a subprocess."""
    done = subprocess.run(side_command(side, folder, precision), check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


# --- workload ---------------------------------------------------------------------------------------------------------


def make_workload(folder: Path, src: str | None, tgt: str | None, overrides: list[str]) -> Config:
    """Return the configuration of the workload, with overrides."""
    source = {"src": str(Path(src).resolve()), "tgt": str(Path(tgt).resolve())} if src and tgt else BUILTIN
    file = folder / "workload.yaml"
    file.write_text(yaml.safe_dump({"data": {"src_lang": "en", "tgt_lang": "de", "train": source}}), encoding="utf-8")
    config = configuration.load(file, overrides)
    return config.model_copy(update={"schedule": config.schedule.with_end(config.train.max_steps)})


def prepare(folder: Path, config: Config, steps: int) -> None:
    """Write the configuration, the tokenizers and the batches that both sides use."""
    folder.mkdir(exist_ok=True)
    table = load_corpus(config.data.train_sources[0], "en", "de", folder)
    tokenizers = trainers.build_tokenizers(config.tokenizer, table)
    tokenizers.save(folder / "tokenizer.json")
    batches, _ = make_stream(config, tokenizers, folder).take(StreamPosition(), steps + WARM_UP)
    torch.save([(b.src, b.tgt_in, b.labels, b.n_src, b.n_tgt) for b in batches], folder / "batches.pt")
    (folder / "config.yaml").write_text(render_yaml(config), encoding="utf-8")


def make_stream(config: Config, tokenizers: TokenizerPair, folder: Path) -> BatchStream:
    """Return the stream of training batches."""
    table = load_corpus(config.data.train_sources[0], "en", "de", folder)
    encoded = encode_corpus(table, tokenizers, LengthLimit(config.data.max_length, "drop"), folder)
    return BatchStream.plain(encoded, tokenizers, config.batches.token_budget, config.seed)


def load_workload(folder: Path) -> tuple[Config, TokenizerPair, list[Batch]]:
    """Load what `prepare` has written."""
    batches = [Batch(*parts) for parts in torch.load(folder / "batches.pt")]
    return configuration.load(folder / "config.yaml"), TokenizerPair.load(folder / "tokenizer.json"), batches


# --- description ------------------------------------------------------------------------------------------------------


def describe_workload(folder: Path, precision: str) -> tuple[float, dict[str, float], dict[str, str]]:
    """Print padding, FLOPs and peak rates. Return FLOPs per target token, peak rates, and each side's precision."""
    config, tokenizers, batches = load_workload(folder)
    batches = batches[WARM_UP:]
    sides = [b.src for b in batches], [b.labels for b in batches]
    src, tgt = lengths(sides[0], tokenizers.src.pad_id), lengths(sides[1], tokenizers.tgt.pad_id)
    padding = [1 - sum(real) / sum(ids.numel() for ids in side) for real, side in zip((src, tgt), sides, strict=True)]
    print(f"padding  {padding[0]:.1%} of the source positions, {padding[1]:.1%} of the target positions")
    flops = model_flops(config.model, tokenizers.tgt.vocab_size, src, tgt) / sum(tgt)
    print(f"model    {flops / 1e6:,.1f} MFLOP per target token (forward and backward)")
    machine = resolve_machine(config.device, precision, config.threads)
    configure_process(machine)
    rates = {name: product_rate(machine.device, dtype) for name, dtype in DTYPES.items()}
    shape = " x ".join(map(str, PRODUCT[machine.device.type]))
    shown = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in rates.items())
    print(f"machine  {shown} GFLOP/s in a matrix product of {shape}; {machine.threads} threads, {machine.device}")
    return flops, rates, {"ours": machine.precision, "baseline": baseline_machine(config, precision).precision}


def lengths(batches: list[torch.Tensor], pad: int) -> list[int]:
    """Count the ids of each sentence that are not padding."""
    return [int(n) for ids in batches for n in (ids != pad).sum(1)]


# --- memory -----------------------------------------------------------------------------------------------------------


def watch_memory(folder: Path, precision: str, steps: int) -> None:
    """Train, and print resident memory at some steps and the speed of each thousand steps."""
    config, tokenizers, _ = load_workload(folder)
    stream, step = make_stream(config, tokenizers, folder), our_step(config, tokenizers, precision)
    position, shapes, resident = StreamPosition(), set[tuple[int, ...]](), dict[int, int]()
    tokens, start = 0, time.perf_counter()
    for number in range(1, steps + 1):
        (batch,), position = stream.take(position, 1)
        step(batch)
        tokens += batch.n_tgt
        shapes.add((*batch.src.shape, batch.tgt_in.size(1)))
        if number in MEMORY_STEPS or number == steps:
            resident[number] = read_resident_bytes()
            print(
                f"step {number:5,}: {resident[number] / 2**20:8,.1f} MiB resident, {len(shapes):,} shapes", flush=True
            )
        if number % 1000 == 0:
            seconds = time.perf_counter() - start
            print(f"steps {number - 999:,} to {number:,}: {tokens / seconds:,.0f} target tokens/s", flush=True)
            tokens, start = 0, time.perf_counter()
    if steps > 500:
        print(f"step {steps:,} over step 500: {resident[steps] / resident[500]:.3f}")


# --- measurement ------------------------------------------------------------------------------------------------------


def run_side(side: str, folder: Path, precision: str) -> float:
    """Measure target tokens per second of one side, without padding."""
    config, tokenizers, batches = load_workload(folder)
    machine = resolve_machine(config.device, precision, config.threads)
    configure_process(machine)
    torch.manual_seed(config.seed)
    step = {"ours": our_step, "baseline": baseline_step}[side](config, tokenizers, precision)
    for batch in batches[:WARM_UP]:
        step(batch)
    synchronise(machine.device)
    start = time.perf_counter()
    for batch in batches[WARM_UP:]:
        step(batch)
    synchronise(machine.device)
    return sum(batch.n_tgt for batch in batches[WARM_UP:]) / (time.perf_counter() - start)


def our_step(config: Config, tokenizers: TokenizerPair, precision: str) -> Step:
    """Return our training step."""
    machine = resolve_machine(config.device, precision, config.threads)
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt).to(machine.device)
    train_step = make_train_step(config, machine, Ranks(), model, split_batch=lambda batch: [])
    schedule, steps = make_schedule(config.schedule, config.model.d_model), count(1)

    def step(batch: Batch) -> None:
        number = next(steps)
        train_step(number, schedule(number), [batch])

    return step


if __name__ == "__main__":
    run_script(main)
