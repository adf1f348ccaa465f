"""Measure the speed and memory of training and search on one GPU. `pytest -m cuda` tests their correctness.

    python scripts/gpu_session.py [--out FOLDER] [--parts PART ...] [--seconds N]
    python scripts/gpu_session.py --tiny            # a small model on a CPU, which tests the script

It needs no data: batches are random ids with the lengths of WMT sentences. The parts are independent: if one fails, its
traceback is printed, and the next part starts. No part starts after `--seconds`. FOLDER/gpu_session.json gets all
results.

ceilings   the rate of a large matrix product and of a copy, and of the products of the base model
memory     peak memory of a step
train      tokens per second, model FLOPs utilisation and kernels of a step: padded, packed, compiled, in CUDA graphs
optimizers the update of the weights alone
decode     beam search: milliseconds per position and tokens per second
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from bench_baseline import model_flops, synchronise
from torch import Tensor

from transformer_mt.data.batches import Batch, BucketedBatches
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import make_inference_model, prepare_for_inference
from transformer_mt.decoding.search import BeamState, DecoderCache, Hypothesis, MinLength, beam_candidates, beam_search
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.model.cuda_graphs import Capture, CudaCapture
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.system.device import Machine, ResolvedPrecision, configure_process
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optimizers import make_optimizers
from transformer_mt.training.packed_batches import pack
from transformer_mt.training.train_step import TrainStep

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PRESETS = {
    "base": "papers/wmt14_en_de_base.yaml",
    "big": "papers/wmt14_en_de_big.yaml",
    "modern": "architectures/modern.yaml",
    "quickstart": "quickstart.yaml",
    "multi30k": "multi30k_en_de.yaml",
}
SMALL = [
    "model.d_model=64",
    "model.d_ff=128",
    "model.n_heads=4",
    "model.encoder.n_layers=2",
    "model.decoder.n_layers=2",
]
PEAK_FLOPS = 989e12  # of an H100 SXM in bf16, from its data sheet
WORDS, SPREAD = 3.2, 0.55  # of the logarithm of the length of a sentence: 28 tokens on average


class Session:
    """The device, and the results so far."""

    def __init__(self, folder: Path, *, is_tiny: bool) -> None:
        self.is_tiny, self.folder = is_tiny, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.machine = Machine(torch.device("cpu" if is_tiny else "cuda"), "bf16", 1)
        self.results: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        return self.machine.device

    def record(self, key: str, value: object) -> None:
        """Print a result and write all results."""
        self.results[key] = value
        print(f"{key}: {value}", flush=True)
        text = json.dumps(self.results, indent=1, default=str)
        (self.folder / "gpu_session.json").write_text(text, encoding="utf-8")

    def median_times(self, function: Callable[[], object], warm_up: int = 3, repeats: int = 12) -> tuple[float, float]:
        """Return the median milliseconds until the device has finished, and until the host has submitted everything."""
        totals: list[float] = []
        submitted: list[float] = []
        for _ in range(2 if self.is_tiny else warm_up + repeats):
            synchronise(self.device)
            start = time.perf_counter()
            function()
            submitted.append(1e3 * (time.perf_counter() - start))
            synchronise(self.device)
            totals.append(1e3 * (time.perf_counter() - start))
        skipped = 0 if self.is_tiny else warm_up
        return statistics.median(totals[skipped:]), statistics.median(submitted[skipped:])

    def mean_time(self, function: Callable[[], object]) -> float:
        """Return the mean milliseconds of calls in a row, of which the host submits one while another is computed."""
        repeats = 2 if self.is_tiny else 24
        function()
        synchronise(self.device)
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        synchronise(self.device)
        return 1e3 * (time.perf_counter() - start) / repeats


# --- models and batches -----------------------------------------------------------------------------------------------


def load_preset(session: Session, name: str, *overrides: str) -> Config:
    return configuration.load(CONFIGS / PRESETS[name], [*(SMALL if session.is_tiny else []), *overrides])


def make_model(config: Config, n_ids: int, device: torch.device) -> Transformer:
    torch.manual_seed(0)
    vocabulary = VocabularySize(n_ids, n_ids - 3)
    return Transformer(config.model, vocabulary, vocabulary).to(device)


def make_batches(n_tokens: int, n_ids: int, count: int) -> list[Batch]:
    """Return batches of random ids, bucketed by length and shuffled as in training."""
    random = np.random.default_rng(0)
    pad, bos = n_ids - 3, n_ids - 2
    src = np.clip(random.lognormal(WORDS, SPREAD, 12 * count * max(1, n_tokens // 28)), 3, 255).astype(np.int32)
    tgt = np.clip(src * random.normal(1.0, 0.12, len(src)), 3, 255).astype(np.int32)
    plan = BucketedBatches(src, tgt, n_tokens).shuffled(1, 0)
    batches: list[Batch] = []
    for i in range(count):
        rows = plan[i]
        sides: list[Tensor] = []
        for lengths in (src[rows], tgt[rows]):
            ids = random.integers(0, pad, (len(rows), int(lengths.max())))
            ids[np.arange(ids.shape[1]) >= lengths[:, None]] = pad
            sides.append(torch.from_numpy(ids))
        tgt_in = sides[1].clone()
        tgt_in[:, 0] = bos
        batches.append(Batch(sides[0], tgt_in, sides[1], int(src[rows].sum()), int(tgt[rows].sum()), rows))
    return batches


def lengths_of(batch: Batch, pad: int) -> tuple[list[int], list[int]]:
    src, tgt = (cast("list[int]", (ids != pad).sum(1).tolist()) for ids in (batch.src, batch.labels))
    return src, tgt


def make_step(session: Session, config: Config, model: Transformer, capture: Capture | None = None) -> TrainStep:
    def split_batch(batch: Batch) -> Sequence[Batch]:
        raise RuntimeError("this batch does not fit")

    return TrainStep(
        model,
        make_optimizers(config.optimizer, model, torch.bfloat16),
        loss=config.loss,
        clip_norm=config.optimizer.clip_norm,
        seed=1,
        machine=session.machine,
        ranks=Ranks(),
        split_batch=split_batch,
        capture=capture,
    )


# --- parts ------------------------------------------------------------------------------------------------------------


def measure_ceilings(session: Session) -> None:
    sizes = (
        [(64, 64, 64)]
        if session.is_tiny
        else [
            (8192, 8192, 8192),
            (25000, 512, 512),
            (25000, 512, 2048),
            (25000, 512, 37000),
            (25000, 512, 36997),
            (57344, 1024, 4096),
        ]
    )
    for m, k, n in sizes:
        left, right = (torch.randn(*shape, device=session.device, dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
        milliseconds, _ = session.median_times(partial(torch.mm, left, right.T))
        session.record(f"ceiling {m} x {k} x {n} bf16", f"{2 * m * k * n / milliseconds / 1e9:.0f} TFLOP/s")
    source = torch.empty(1 << (20 if session.is_tiny else 30), dtype=torch.uint8, device=session.device)
    target = torch.empty_like(source)
    milliseconds, _ = session.median_times(lambda: target.copy_(source))
    session.record("ceiling copy", f"{2 * len(source) / milliseconds / 1e9:.2f} TB/s read and written")


def measure_memory(session: Session) -> None:
    if session.device.type != "cuda":
        return
    for preset, n_ids, n_tokens in (("base", 37000, 25000), ("base", 37000, 65536), ("big", 32768, 57344)):
        config = load_preset(session, preset)
        model = make_model(config, n_ids, session.device)
        for packed in (False, True):
            (batch,) = make_batches(n_tokens, n_ids, 1)
            step = make_step(session, config, model)
            torch.cuda.reset_peak_memory_stats()
            step(1, 1e-3, [pack([batch], n_ids - 3, n_ids - 3) if packed else batch])
            synchronise(session.device)
            peak = torch.cuda.max_memory_allocated() / 2**30
            session.record(f"memory {preset} {n_tokens} {'packed' if packed else 'padded'}", f"{peak:.1f} GiB")
        del model, step
        torch.cuda.empty_cache()


class Workload(NamedTuple):
    """A training step: `n_batches` batches of `n_tokens` target tokens."""

    preset: str
    n_ids: int
    n_tokens: int
    n_batches: int


WORKLOADS = (
    Workload("base", 37000, 6250, 4),
    Workload("modern", 37000, 6250, 4),
    Workload("big", 32768, 14336, 4),
    Workload("quickstart", 2000, 2048, 1),
    Workload("multi30k", 6000, 4096, 1),
)
LAYOUTS = ("padded", "packed", "packed graphs", "packed compiled", "packed compiled graphs")


def measure_training(session: Session) -> None:
    for workload in [Workload("base", 1000, 300, 2)] if session.is_tiny else WORKLOADS:
        for layout in LAYOUTS:
            try:
                measure_steps(session, workload, layout)
            except Exception:
                session.record(f"FAILED train {workload} {layout}", traceback.format_exc(limit=-4))
            torch.compiler.reset()
            if session.device.type == "cuda":
                torch.cuda.empty_cache()


def measure_steps(session: Session, workload: Workload, layout: str) -> None:
    preset, n_ids, n_tokens, n_batches = workload
    config, pad = load_preset(session, preset), n_ids - 3
    model = make_model(config, n_ids, session.device)
    capture: Capture | None = None
    if layout.endswith("graphs"):
        capture = (lambda run: run) if session.is_tiny else CudaCapture(session.device)
    step, batches = make_step(session, config, model, capture=capture), make_batches(n_tokens, n_ids, 6 * n_batches)
    groups = [batches[i : i + n_batches] for i in range(0, len(batches), n_batches)]
    n_labels = statistics.mean(sum(batch.n_tgt for batch in group) for group in groups)
    lengths = [lengths_of(batch, pad) for batch in batches]
    flops = sum(model_flops(config.model, n_ids, src, tgt) for src, tgt in lengths) / len(groups)
    if layout != "padded":
        packed = [pack(group, pad, pad) for group in groups]
        groups = [[each.pad(pad, pad, None) if capture else each] for each in packed]
    if session.device.type == "cuda":
        groups = [[batch.pin_memory() for batch in group] for group in groups]
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    if "compiled" in layout:
        model.compile_layers("eager" if session.is_tiny else "inductor")
    number = 2 * len(groups)  # a graph is captured when its size occurs again
    for i in range(number):
        step(i, 1e-4, groups[i % len(groups)])
    synchronise(session.device)
    first_rounds = time.perf_counter() - start

    def take_step() -> None:
        nonlocal number
        number += 1
        step(number, 1e-4, groups[number % len(groups)])

    milliseconds = session.mean_time(take_step)
    _, submitted = session.median_times(take_step, warm_up=0, repeats=6)
    found: dict[str, Any] = {
        "ms": round(milliseconds, 1),
        "host ms": round(submitted, 1),
        "target tokens/s": round(1e3 * n_labels / milliseconds),
        "MFU": f"{1e3 * flops / milliseconds / PEAK_FLOPS:.1%}",
        "first two rounds s": round(first_rounds, 1),
    }
    if session.device.type == "cuda":
        found["reserved GiB"] = round(torch.cuda.max_memory_reserved() / 2**30, 1)
        found.update(profile_kernels(take_step))
    session.record(f"train {preset} {n_batches} x {n_tokens} {layout}", found)


def profile_kernels(function: Callable[[], object]) -> dict[str, Any]:
    """Count the kernels of a call, and list those that take the most time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    events = [event for event in cast("list[Any]", profile.key_averages()) if event.self_device_time_total > 0]
    times = sorted(((event.self_device_time_total / 1e3, event.count, event.key) for event in events), reverse=True)
    return {
        "kernels": sum(count for _, count, _ in times),
        "kernel ms": round(sum(milliseconds for milliseconds, _, _ in times), 1),
        "top": [f"{name[:60]} x{count} {milliseconds:.2f} ms" for milliseconds, count, name in times[:14]],
    }


def measure_optimizers(session: Session) -> None:
    cases = {"adam": (), "muon": ("optimizer.kind=muon",)}
    for name, overrides in cases.items():
        config = load_preset(session, "base", *overrides)
        model = make_model(config, 1000 if session.is_tiny else 37000, session.device)
        update = partial(update_weights, make_step(session, config, model))
        milliseconds, submitted = session.median_times(update)
        session.record(f"update {name}", f"{milliseconds:.2f} ms, host {submitted:.2f} ms")


def update_weights(step: TrainStep) -> None:
    one = torch.ones((), device=step.machine.device)
    for parameter in step.parameters:
        parameter.grad = torch.ones_like(parameter)
    step.update_weights(1e-4, one, one)


@torch.inference_mode()
def measure_decoding(session: Session) -> None:
    """Search with random weights, whose translations do not end before the length limit."""
    n_ids, positions = (500, 4) if session.is_tiny else (37000, 36)
    for precision in cast("tuple[ResolvedPrecision, ...]", ("bf16", "fp32")):
        model = prepare_for_inference(make_model(load_preset(session, "base"), n_ids, session.device), precision)
        inference_model = make_inference_model(model)
        for n_sentences, beam in (
            ((2, 4),) if session.is_tiny else ((1, 1), (1, 4), (32, 4), (128, 1), (128, 4), (512, 4))
        ):
            src = torch.randint(0, n_ids - 3, (n_sentences, 30), device=session.device)
            search_again = partial(search, inference_model, src, beam, positions, n_ids)
            milliseconds, _ = session.median_times(search_again, warm_up=1, repeats=3)
            rate = 1e3 * n_sentences * positions / milliseconds
            name = f"decode {precision}, {n_sentences} sentences, beam {beam}"
            session.record(name, f"{milliseconds / positions:.2f} ms per position, {rate:,.0f} tokens/s")
            if session.device.type == "cuda" and (precision, n_sentences, beam) == ("bf16", 128, 4):
                session.record(f"kernels of {positions} positions", profile_kernels(search_again))


def search(model: Any, src: Tensor, n_beams: int, n_positions: int, n_ids: int) -> list[list[Hypothesis]]:
    """Search with a model of `make_inference_model`."""
    limits = torch.full((len(src),), n_positions, device=src.device)
    beams = BeamState(limits, n_beams, n_ids - 2, n_ids - 1, DecodingConfig(beam=n_beams).length_normalize)

    def step(tokens: Tensor, cache: DecoderCache) -> Iterator[Tensor]:
        yield model.logits(model.step(tokens, cache)).log_softmax(-1)

    return beam_search(step, model.start(src), beams, beam_candidates, [MinLength(n_positions, n_ids - 1)])


PARTS: dict[str, Callable[[Session], None]] = {
    "ceilings": measure_ceilings,
    "train": measure_training,
    "decode": measure_decoding,
    "optimizers": measure_optimizers,
    "memory": measure_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no part after this time")
    parser.add_argument("--tiny", action="store_true", help="a small model on a CPU")
    args = parser.parse_args()
    session = Session(args.out, is_tiny=args.tiny)
    configure_process(session.machine)
    session.record("torch", torch.__version__)
    session.record("device", "cpu" if args.tiny else torch.cuda.get_device_name(0))
    session_start = time.perf_counter()
    for part in args.parts:
        start = time.perf_counter()
        if start - session_start > args.seconds:
            session.record(f"skipped {part}", "no time left")
            continue
        try:
            PARTS[part](session)
        except Exception:
            session.record(f"FAILED {part}", traceback.format_exc(limit=-6))
        session.record(f"seconds of {part}", round(time.perf_counter() - start, 1))


if __name__ == "__main__":
    main()
