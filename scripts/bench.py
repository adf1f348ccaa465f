"""Measure speed side by side: ours beside a plain loop, in one run, so that only the ratio depends on the machine.

    python scripts/bench.py train [--src F --tgt G] [--rounds N] [--steps N] [--precision fp32|bf16]

The work: joint vocabulary of 8,000, 3 + 3 layers, d_model 256, d_ff 1024, 4 heads, dropout 0.1, tied embeddings, label
smoothing 0.1, batches of about 4,096 padded target tokens, the same batches on both sides. The other side is a loop
over `torch.nn.Transformer` in fp32 with torch's defaults. Each side runs in a process of its own, and they take turns.
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
from typing import Any

import torch
from torch import Tensor, nn

from transformer_mt import config as configuration
from transformer_mt.config import Config
from transformer_mt.data import corpus, tokenizer
from transformer_mt.data.batching import Batch, BatchStream, Position
from transformer_mt.data.encoded import LengthLimit, encode
from transformer_mt.data.tokenizer import TokenizerPair
from transformer_mt.device import resolve
from transformer_mt.model.positions import sinusoidal_table
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.optim import make_optimizer
from transformer_mt.training.schedule import make_schedule
from transformer_mt.training.update import Updater

SIDES = ("student", "ours")
WARM_UP = 5  # steps that are not counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train"])
    parser.add_argument("--src", help="source sentences (default: the built-in corpus)")
    parser.add_argument("--tgt", help="their translations")
    parser.add_argument("--rounds", type=int, default=5, help="how often the sides take turns")
    parser.add_argument("--steps", type=int, default=15, help="counted steps of a turn")
    parser.add_argument("--precision", default="auto", help="of our side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(run_side(args.side, args.folder, args.precision))
        return
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), work(args.src, args.tgt), args.steps)
        compare(Path(name), args.rounds, args.precision)


def compare(folder: Path, rounds: int, precision: str) -> None:
    """Let the sides take turns, and print tokens per second and the ratio."""
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(rounds):
        for side in SIDES:
            speeds[side].append(measure_side(side, folder, precision))
        ratio = speeds["ours"][-1] / speeds["student"][-1]
        print(f"turn {turn + 1}: " + "  ".join(f"{s} {speeds[s][-1]:,.0f}" for s in SIDES) + f"  ratio {ratio:.2f}")
    ratios = [ours / student for ours, student in zip(speeds["ours"], speeds["student"], strict=True)]
    for side in SIDES:
        print(f"{side:8} {statistics.median(speeds[side]):8,.0f} target tokens/s (median of {rounds})")
    print(f"ratio    {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


def measure_side(side: str, folder: Path, precision: str) -> float:
    """Target tokens per second of one side, in a process of its own."""
    command = [sys.executable, __file__, "train", "--folder", str(folder), "--precision", precision, "--side", side]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def work(src: str | None, tgt: str | None) -> Config:
    """The fixed work as a configuration."""
    source = {"src": src, "tgt": tgt} if src else {"builtin": "quickstart"}
    return Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de", "train": source}})


def prepare(folder: Path, config: Config, steps: int) -> None:
    """Write the configuration, the tokenizer and the batches that all sides are to use."""
    folder.mkdir(exist_ok=True)
    table = corpus.load(config.data.train, "en", "de", folder)
    tokenizers = tokenizer.train(config.tokenizer, table)
    tokenizers.save(folder / "tokenizer.json")
    encoded = encode(table, tokenizers, LengthLimit(config.data.max_length, "drop"), folder)
    stream = BatchStream(encoded, tokenizers, config.batches.tokens, config.seed)
    batches, _ = stream.take(Position(), steps + WARM_UP)
    torch.save([(b.src, b.tgt_in, b.labels, b.n_src, b.n_tgt) for b in batches], folder / "batches.pt")
    (folder / "config.yaml").write_text(configuration.render(config), encoding="utf-8")


def run_side(side: str, folder: Path, precision: str) -> float:
    """Non-padding target tokens per second of one side."""
    config = configuration.load(folder / "config.yaml")
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    batches = [Batch(*parts) for parts in torch.load(folder / "batches.pt")]
    torch.manual_seed(config.seed)
    step = (our_step if side == "ours" else student_step)(config, tokenizers, folder, precision)
    for batch in batches[:WARM_UP]:
        step(batch)
    began = time.perf_counter()
    for batch in batches[WARM_UP:]:
        step(batch)
    return sum(batch.n_tgt for batch in batches[WARM_UP:]) / (time.perf_counter() - began)


def our_step(config: Config, tokenizers: TokenizerPair, folder: Path, precision: str) -> Any:
    """Our own step."""
    machine = resolve("auto", precision, "auto")
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt).to(machine.device)
    updater = Updater(
        model,
        make_optimizer(config.optimizer, model),
        smoothing=config.loss.label_smoothing,
        clip_norm=config.optimizer.clip_norm,
        seed=config.seed,
        machine=machine,
        ranks=Ranks(),
        halve=lambda batch: [],
    )
    schedule, steps = make_schedule(config.schedule, config.model.d_model), count(1)

    def step(batch: Batch) -> None:
        step = next(steps)
        updater.update(step, schedule(step), [batch])

    return step


class Student(nn.Module):
    """What a careful student writes around `torch.nn.Transformer`."""

    def __init__(self, config: Config, vocab_size: int, pad: int) -> None:
        super().__init__()
        model, self.pad = config.model, pad
        self.embedding = nn.Embedding(vocab_size, model.d_model, padding_idx=pad)
        self.register_buffer("positions", sinusoidal_table(1000, model.d_model))
        self.dropout = nn.Dropout(0.1)
        self.transformer = nn.Transformer(
            model.d_model, model.n_heads, 3, 3, model.d_ff, 0.1, batch_first=True, norm_first=True
        )
        self.output = nn.Linear(model.d_model, vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def embed(self, ids: Tensor) -> Tensor:
        scale = self.embedding.embedding_dim**0.5
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.size(1)])  # type: ignore[index]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device, dtype=torch.bool)
        states = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=causal,
            src_key_padding_mask=src == self.pad,
            tgt_key_padding_mask=tgt == self.pad,
            memory_key_padding_mask=src == self.pad,
            tgt_is_causal=True,
        )
        return self.output(states)


def student_step(config: Config, tokenizers: TokenizerPair, _folder: Path, _precision: str) -> Any:
    device = resolve("auto", "fp32", "auto").device
    pad = tokenizers.tgt.pad_id
    model = Student(config, tokenizers.tgt.vocab_size, pad).to(device)
    criterion = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def step(batch: Batch) -> None:
        batch = batch.to(device)
        optimizer.zero_grad()
        logits = model(batch.src, batch.tgt_in)
        loss = criterion(logits.flatten(0, 1), batch.labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()

    return step


if __name__ == "__main__":
    main()
