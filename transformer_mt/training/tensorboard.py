"""TensorBoard's event files: the row of hyper-parameters, and cutting a file back to a step.

Untyped libraries are behind this door: what comes out has types.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from transformer_mt.plotting.figures import render_pixels
from transformer_mt.system.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scalar = str | float | int | bool | None


class EventWriter:
    """Appends to the events of one folder. A new folder begins with the run's hyper-parameters."""

    def __init__(self, folder: Path, hparams: Mapping[str, Scalar]) -> None:
        is_new = not any(folder.glob("*tfevents*"))
        self._writer: Any = SummaryWriter(str(folder))
        if is_new:
            self._writer.file_writer.add_summary(_hparams_summary(hparams), 0)

    def scalar(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def text(self, name: str, markdown: str, step: int) -> None:
        self._writer.add_text(name, markdown, step)

    def figure(self, name: str, figure: Figure, step: int) -> None:
        self._writer.add_image(name, render_pixels(figure), step, dataformats="HWC")

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def stays(at: int, names: Iterable[str], step: int, is_scored: bool) -> bool:
    """Whether figures that were recorded at a step belong to a checkpoint's past.

    Test sets are scored after it, and where it has no scores, so is the validation of its step.
    """
    later = ("test/",) if is_scored else ("test/", "valid", "best/", "degenerate")
    return at < step or (at == step and not any(name.startswith(later) for name in names))


def cut_back(folder: Path, step: int, is_scored: bool) -> None:
    """Rewrite the event files of a folder without what came after a step, and without torn ends.

    A file in which nothing is left goes: a new one begins with the hyper-parameters, which it may not have held yet.
    """
    event: Any = event_pb2
    for path in sorted(folder.glob("*tfevents*")):
        loader: Any = RawEventFileLoader(str(path))
        records: list[bytes] = list(loader.Load())
        entries: list[Any] = [event.Event.FromString(record) for record in records]
        tags = [[value.tag for value in entry.summary.value] for entry in entries]
        kept = [i for i, entry in enumerate(entries) if stays(entry.step, tags[i], step, is_scored)]
        if not any(tags[i] for i in kept):
            path.unlink()
            continue
        with atomic_file(path) as beside, beside.open("wb") as file:
            writer: Any = RecordWriter(file)
            for i in kept:
                writer.write(records[i])
            writer.flush()


def _hparams_summary(hparams: Mapping[str, Scalar]) -> Any:
    """One row of TensorBoard's HPARAMS table.

    Only the session's start is written. With an experiment summary beside it, as `add_hparams` writes one, TensorBoard
    shows the columns of one arbitrary run for all; without it, those of every run, and every scalar.
    """
    plugin: Any = plugin_data_pb2
    summary: Any = summary_pb2
    hparams_metadata: Any = metadata
    info = plugin.SessionStartInfo(start_time_secs=time.time())
    for name, value in hparams.items():
        slot = info.hparams[name]
        if isinstance(value, bool):  # a bool is an int, so it comes first
            slot.bool_value = value
        elif isinstance(value, int | float) and math.isfinite(value):
            slot.number_value = value
        else:
            slot.string_value = str(value)
    content = plugin.HParamsPluginData(session_start_info=info)
    entry = summary.Summary.Value(
        tag=hparams_metadata.SESSION_START_INFO_TAG,
        metadata=hparams_metadata.create_summary_metadata(content),
        tensor=hparams_metadata.NULL_TENSOR,
    )
    return summary.Summary(value=[entry])
