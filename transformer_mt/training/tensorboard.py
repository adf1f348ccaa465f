"""TensorBoard event files: a typed writer, the table of hyper-parameters, and truncation to a checkpoint."""

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
    """Appends events to a folder. In a new folder it writes the hyper-parameters first."""

    def __init__(self, folder: Path, hparams: Mapping[str, Scalar]) -> None:
        is_new = not any(folder.glob("*tfevents*"))
        self._writer: Any = SummaryWriter(str(folder))
        if is_new:
            self._writer.file_writer.add_summary(_hparams_summary(hparams), 0)

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write a point of a curve."""
        self._writer.add_scalar(name, value, step)

    def text(self, name: str, markdown: str, step: int) -> None:
        """Write Markdown text."""
        self._writer.add_text(name, markdown, step)

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """Write a figure as an image."""
        self._writer.add_image(name, render_pixels(figure), step, dataformats="HWC")

    def flush(self) -> None:
        """Write buffered events to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def precedes_checkpoint(entry_step: int, names: Iterable[str], checkpoint_step: int, is_scored: bool) -> bool:
    """Return whether an entry was recorded before a checkpoint was saved.

    Entries of the checkpoint's step precede it, except test scores, and validation scores unless `is_scored`.
    """
    later = ("test/",) if is_scored else ("test/", "valid", "best/", "degenerate")
    is_earlier_name = not any(name.startswith(later) for name in names)
    return entry_step < checkpoint_step or (entry_step == checkpoint_step and is_earlier_name)


def truncate(folder: Path, step: int, is_scored: bool) -> None:
    """Delete the entries after a checkpoint, and incomplete records, from the event files of a folder.

    Files without entries are deleted, so that `EventWriter` writes the hyper-parameters again.
    """
    event: Any = event_pb2
    for path in sorted(folder.glob("*tfevents*")):
        loader: Any = RawEventFileLoader(str(path))
        records: list[bytes] = list(loader.Load())
        entries: list[Any] = [event.Event.FromString(record) for record in records]
        tags = [[value.tag for value in entry.summary.value] for entry in entries]
        kept = [i for i, entry in enumerate(entries) if precedes_checkpoint(entry.step, tags[i], step, is_scored)]
        if not any(tags[i] for i in kept):
            path.unlink()
            continue
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            writer: Any = RecordWriter(file)
            for i in kept:
                writer.write(records[i])
            writer.flush()


def _hparams_summary(hparams: Mapping[str, Scalar]) -> Any:
    """Return one row of TensorBoard's HPARAMS table.

    It lacks the experiment summary that `add_hparams` also writes, because TensorBoard would then show the columns of
    one arbitrary run for all runs.
    """
    plugin: Any = plugin_data_pb2
    summary: Any = summary_pb2
    hparams_metadata: Any = metadata
    session = plugin.SessionStartInfo(start_time_secs=time.time())
    for name, value in hparams.items():
        entry = session.hparams[name]
        if isinstance(value, bool):  # before int, because a bool is an int
            entry.bool_value = value
        elif isinstance(value, int | float) and math.isfinite(value):
            entry.number_value = value
        else:
            entry.string_value = str(value)
    content = plugin.HParamsPluginData(session_start_info=session)
    return summary.Summary(
        value=[
            summary.Summary.Value(
                tag=hparams_metadata.SESSION_START_INFO_TAG,
                metadata=hparams_metadata.create_summary_metadata(content),
                tensor=hparams_metadata.NULL_TENSOR,
            )
        ]
    )
