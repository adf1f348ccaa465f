"""A self-test for `tmt doctor`: a tiny Transformer learns to reverse digits, with the training step of the package.

`B` sequences, `L` digits.
"""

from __future__ import annotations

import math
import time
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_mt.data.batches import Batch
from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig
from transformer_mt.model.transformer import Transformer, VocabularySize
from transformer_mt.system.device import Machine, one_thread
from transformer_mt.training.distributed import Ranks
from transformer_mt.training.loss import LossConfig, make_loss
from transformer_mt.training.optimizers import OptimizerConfig, make_optimizers
from transformer_mt.training.schedule import ScheduleConfig, make_schedule
from transformer_mt.training.train_step import TrainStep

PAD, BOS, EOS, FIRST_DIGIT, VOCAB_SIZE = 0, 1, 2, 3, 13
N_DIGITS, BATCH_SIZE = 6, 64
MODEL = ModelConfig.model_validate(
    {"d_model": 64, "d_ff": 128, "n_heads": 4, "encoder": {"n_layers": 1}, "decoder": {"n_layers": 1}}
)
SCHEDULE = ScheduleConfig(peak=3e-3, warmup_steps=50)
MAX_STEPS, TEST_EVERY = 1000, 25  # about 150 steps are usual
SUFFICIENT_ACCURACY = 0.95
GUESSING_LOSS = math.log(VOCAB_SIZE - 1)  # padding is never predicted


class SelfTestResult(NamedTuple):
    """State at the end of the self-test."""

    steps: int
    loss: float  # per token, of the last step
    accuracy: float  # share of new sequences that greedy search reverses without an error
    seconds: float

    @property
    def beats_guessing(self) -> bool:
        """Return whether the loss fell below that of guessing, even if there was no time to learn the task."""
        return self.loss < GUESSING_LOSS  # False for NaN

    @property
    def is_learnt(self) -> bool:
        """Return whether the task was learnt."""
        return self.accuracy >= SUFFICIENT_ACCURACY


def learn_to_reverse(machine: Machine, time_limit: float, config: ModelConfig = MODEL) -> SelfTestResult:
    """Train until the task is learnt, or until the time limit in seconds or `MAX_STEPS` is reached."""
    torch.manual_seed(1)
    vocabulary = VocabularySize(VOCAB_SIZE, PAD)
    model = Transformer(config, vocabulary, vocabulary).to(machine.device)
    generator = torch.Generator().manual_seed(1)
    schedule = make_schedule(SCHEDULE, config.d_model)
    train_step = TrainStep(
        model,
        make_optimizers(OptimizerConfig(), model),
        loss=make_loss(LossConfig(label_smoothing=0.0)),
        clip_norm=1.0,
        seed=1,
        machine=machine,
        ranks=Ranks(),
        split_batch=_refuse_split,
    )
    start = time.perf_counter()
    with one_thread():
        for step in count(1):
            metrics = train_step(step, schedule(step), [make_batch(generator)])
            is_last = step == MAX_STEPS or time.perf_counter() - start > time_limit
            if is_last or step % TEST_EVERY == 0:
                accuracy = measure_accuracy(model, machine, make_batch(generator))
                loss = float(metrics.loss / metrics.n_tgt)
                result = SelfTestResult(step, loss, accuracy, time.perf_counter() - start)
                if is_last or result.is_learnt:
                    return result
    raise AssertionError("the loop ends only with a result")


def make_batch(generator: torch.Generator) -> Batch:
    """Return random digits as source, and the same digits in reverse order as target."""
    digits = torch.randint(FIRST_DIGIT, VOCAB_SIZE, (BATCH_SIZE, N_DIGITS), generator=generator)  # [B, L]
    bos, eos = (torch.full((BATCH_SIZE, 1), symbol) for symbol in (BOS, EOS))
    src, tgt_in, labels = ([digits, eos], [bos, digits.flip(1)], [digits.flip(1), eos])
    n_tokens = BATCH_SIZE * (N_DIGITS + 1)
    return Batch(torch.cat(src, 1), torch.cat(tgt_in, 1), torch.cat(labels, 1), n_tokens, n_tokens)


@torch.no_grad()
def measure_accuracy(model: Transformer, machine: Machine, batch: Batch) -> float:
    """Return the share of sequences that greedy search with the KV cache reverses without an error."""
    model.eval()
    batch = batch.to(machine.device)
    tokens, outputs = batch.tgt_in[:, :1], list[Tensor]()  # [B, 1]
    with machine.autocast():
        cache = model.start(batch.src)
        for _ in range(batch.labels.size(1)):
            tokens = model.logits(model.step(tokens, cache)).argmax(-1)
            outputs.append(tokens)
    model.train()
    return float((torch.cat(outputs, 1) == batch.labels).all(1).float().mean())


def _refuse_split(_: Batch) -> list[Batch]:
    raise UserError("out of memory with a model of 150,000 parameters; end other programs that use this device")
