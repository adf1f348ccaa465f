"""Figures of a configuration, a model or a corpus, for TensorBoard and for `tmt plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from transformer_mt.errors import UserError
from transformer_mt.plotting import figures
from transformer_mt.training.schedule import ScheduleConfig, make_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_mt.data.config import DataConfig
    from transformer_mt.data.encoding import EncodedCorpus
    from transformer_mt.model.config import ModelConfig
    from transformer_mt.model.transformer import Transformer

MAX_POSITIONS = 128  # drawn positions
DRAWN_BLOCK = 10_000  # consecutive pairs whose lengths are drawn
MAX_DRAWN_BLOCKS = 400
CURVE_POINTS = 1000


def plot_positions(config: ModelConfig, model: Transformer | None) -> Figure:
    """Draw the table of positions: computed from the configuration, or learned by `model`.

    Rotary positions are drawn as the cosines and sines of the encoder's rotation angles.

    Raises:
        UserError: The model has no positions, or learned positions but no `model` is given.
    """
    from transformer_mt.model.positions import LearnedPositions, rotary_table, sinusoidal_table

    if config.positions == "none":
        raise UserError(
            "model.positions is none: there is nothing to draw; sinusoidal, learned and rotary have a table"
        )
    if config.positions == "learned":
        learned = model and model.encoder.embedding.positions
        if not isinstance(learned, LearnedPositions):
            raise UserError("model.positions is learned: there is no table before training; pass a trained run")
        table = learned.table.detach().cpu()
    elif config.positions == "rotary":
        width = config.for_stack(config.encoder).d_head
        halves = rotary_table(MAX_POSITIONS, width)[..., width // 2 :]  # each angle once. [2, P, E / 2]
        table = halves.transpose(0, 1).flatten(1)  # [P, E]: cosines, then sines
    else:
        table = sinusoidal_table(MAX_POSITIONS, config.d_model)
    shown = table[:MAX_POSITIONS].numpy()
    return figures.draw_positions(shown, f"{config.positions} positions, {len(shown)} of them")


def plot_schedule(config: ScheduleConfig, d_model: int, max_steps: int | None) -> Figure:
    """Draw the learning rate of every schedule, the configured one highlighted.

    The x axis ends at `max_steps`, else at `schedule.total_steps`, else after ten warm-ups (at least 1,000 steps).
    """
    end = max_steps or config.total_steps or max(1000, 10 * config.warmup_steps)
    steps = np.unique(np.r_[np.linspace(1, end, CURVE_POINTS, dtype=int), min(config.warmup_steps, end)])
    rates: dict[str, NDArray[Any]] = {}
    for kind in get_args(ScheduleConfig.model_fields["kind"].annotation):
        schedule = make_schedule(config.model_copy(update={"kind": kind}).with_end(end), d_model)
        rates[kind] = np.array([schedule(int(step)) for step in steps])
    return figures.draw_schedule(steps, rates, config.kind, config.warmup_steps)


def plot_lengths(corpus: EncodedCorpus, data: DataConfig) -> Figure:
    """Draw the lengths of the training pairs in tokens, with the number of pairs beyond `data.max_length`."""
    starts = range(0, len(corpus), DRAWN_BLOCK)
    filtered = corpus.limit_counts
    beyond = filtered.too_long + filtered.truncated
    for start in starts:
        src, tgt = (side.lengths_of(start, min(start + DRAWN_BLOCK, len(corpus))) for side in corpus.sides)
        beyond += int((np.maximum(src, tgt) + 1 > data.max_length).sum())
    drawn = starts[:: -(-len(starts) // MAX_DRAWN_BLOCKS)]  # spread over a large corpus
    src, tgt = (
        np.concatenate([side.lengths_of(start, min(start + DRAWN_BLOCK, len(corpus))) for start in drawn]) + 1
        for side in corpus.sides
    )  # + 1: end symbol
    title = f"{len(corpus):,} training pairs; {beyond:,} beyond data.max_length"
    if filtered.too_long:
        title += f", {filtered.too_long:,} of them dropped"
    if filtered.truncated:
        title += f", {filtered.truncated:,} of them truncated"
    return figures.draw_lengths(src, tgt, (data.src_lang, data.tgt_lang), data.max_length, title)
