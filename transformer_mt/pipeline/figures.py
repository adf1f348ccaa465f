"""What can be drawn of a configuration, a model and a corpus, for TensorBoard and for `tmt plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from transformer_mt.errors import UserError
from transformer_mt.plotting import figures
from transformer_mt.training.schedule import ScheduleConfig, make_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_mt.data.corpus import DataConfig
    from transformer_mt.data.encoding import EncodedCorpus
    from transformer_mt.model.config import ModelConfig
    from transformer_mt.model.transformer import Transformer

POSITIONS = 128  # that are drawn, at most
POINTS = 1000  # of a curve


def positions(config: ModelConfig, model: Transformer | None) -> Figure:
    """The table of positions: computed, or as a model has learnt it.

    That of rotary positions is a vector of ones, then zeros, turned as the encoder's queries and keys at each position
    are.
    """
    from transformer_mt.model.positions import LearnedPositions, rotary_table, sinusoidal_table

    if config.positions == "none":
        raise UserError(
            "model.positions is none: there is nothing to draw; sinusoidal, learned and rotary have a table"
        )
    if config.positions == "learned":
        learned = model and model.encoder.embedding.positions
        if not isinstance(learned, LearnedPositions):
            raise UserError("model.positions is learned: there is no table before training; name a run that learnt one")
        table = learned.table.detach().cpu()
    elif config.positions == "rotary":
        width = config.of(config.encoder).d_head
        table = rotary_table(POSITIONS, width).transpose(0, 1).flatten(1)  # [P, E]: cosines, then sines
    else:
        table = sinusoidal_table(POSITIONS, config.d_model)
    shown = table[:POSITIONS].numpy()
    return figures.positions_figure(shown, f"{config.positions} positions, {len(shown)} of them")


def schedule(config: ScheduleConfig, d_model: int, max_steps: int | None) -> Figure:
    """The learning rate up to the last step; where none is set, to the end of the curve, or through ten times the
    warm-up or 1,000 steps."""
    end = max_steps or config.total_steps or max(1000, 10 * config.warmup_steps)
    steps = np.unique(np.r_[np.linspace(1, end, POINTS, dtype=int), min(config.warmup_steps, end)])
    rates: dict[str, NDArray[Any]] = {}
    for kind in get_args(ScheduleConfig.model_fields["kind"].annotation):
        rate = make_schedule(config.model_copy(update={"kind": kind}).ending(end), d_model)
        rates[kind] = np.array([rate(int(step)) for step in steps])
    return figures.schedule_figure(steps, rates, config.kind, config.warmup_steps)


def lengths(corpus: EncodedCorpus, data: DataConfig) -> Figure:
    """The lengths of training pairs in tokens, and how many pairs are beyond the limit: drawn, or left out before."""
    src, tgt = corpus.src.lengths + 1, corpus.tgt.lengths + 1  # with the end symbol
    filtered = corpus.filtered
    beyond = int((np.maximum(src, tgt) > data.max_length).sum()) + filtered.too_long + filtered.truncated
    title = f"{len(corpus):,} training pairs; {beyond:,} beyond data.max_length"
    if filtered.too_long:
        title += f", {filtered.too_long:,} of them left out here"
    if filtered.truncated:
        title += f", {filtered.truncated:,} of them cut"
    return figures.lengths_figure(src, tgt, (data.src_lang, data.tgt_lang), data.max_length, title)
