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
from tensorboard.plugins.text import summary_v2 as text_summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from transformer_mt.plotting.figures import render_pixels
from transformer_mt.system.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scalar = str | float | int | bool | None


CHARTS = {
    "headline": ("bleu", "learning_rate", "loss", "tokens_per_second"),
    "input": ("padding", "waiting"),
    "optimization": ("consistency", "gradient_norm", "skipped_steps", "split_batches"),
    "progress": ("epoch", "hours"),
    "quality": ("chrf", "degenerate", "nll", "ppl"),
}
"""Quantities by section of TensorBoard, which shows sections and charts in alphabetical order."""

FIGURES, TEXTS = "plots/", "translations/"  # prefixes of their tags, which sort after the headline
BEST_SCORES = ("best/bleu", "best/chrf", "best/loss")  # columns of HPARAMS, which shows few unless asked for more

_SECTIONS = {quantity: section for section, quantities in CHARTS.items() for quantity in quantities}
CURVES = ("train", "valid")
"""Sub-folders whose curves share the charts. The folder itself has hyper-parameters, images, texts and test scores."""
HPARAMS_FILE = "events.hparams.tfevents"  # sorts before "events.out": TensorBoard follows only the last file


class EventWriter:
    """Appends events to a folder, training and validation curves to its sub-folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}  # by sub-folder

    def _writer(self, part: str = "") -> Any:
        if part not in self._writers:
            self._writers[part] = SummaryWriter(str(self._folder / part))
        return self._writers[part]

    def write_scalar(self, name: str, value: float, step: int) -> None:
        """Write a point of a curve."""
        part, tag = locate_chart(name)
        self._writer(part).add_scalar(tag, value, step)

    def write_text(self, name: str, markdown: str, step: int) -> None:
        """Write Markdown text."""
        writer = self._writer()
        plugin: Any = text_summary
        writer.file_writer.add_summary(plugin.text_pb(TEXTS + name, markdown), step)  # add_text would append to the tag

    def write_figure(self, name: str, figure: Figure, step: int) -> None:
        """Write a figure as an image."""
        self._writer().add_image(FIGURES + name, render_pixels(figure), step, dataformats="HWC")

    def write_hparams(self, values: Mapping[str, Scalar]) -> None:
        """Replace this run's row of the HPARAMS table. A running TensorBoard keeps showing the old one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        event: Any = event_pb2
        values = {name: value for name, value in values.items() if not name.startswith("best/") or name in BEST_SCORES}
        now = time.time()
        entries = [
            event.Event(wall_time=now, file_version="brain.Event:2"),
            event.Event(wall_time=now, summary=_hparams_summary(values)),
        ]
        _write_records(self._folder / HPARAMS_FILE, [entry.SerializeToString() for entry in entries])

    def flush(self) -> None:
        """Write buffered events to the files."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()


def locate_chart(name: str) -> tuple[str, str]:
    """Return the sub-folder and the tag of a metric: `valid/bleu` -> `valid`, `headline/bleu`."""
    part, _, quantity = name.partition("/")
    return (part, f"{_SECTIONS.get(quantity, 'other')}/{quantity}") if part in CURVES else ("", name)


def precedes_checkpoint(entry_step: int, names: Iterable[str], checkpoint_step: int, is_scored: bool) -> bool:
    """Return whether an entry was recorded before a checkpoint was saved.

    Entries of the checkpoint's step precede it, except test scores, and validation scores unless `is_scored`.
    """
    later = ("test/",) if is_scored else ("test/", "valid", "best/", TEXTS, f"{FIGURES}attention")
    is_earlier_name = not any(name.startswith(later) for name in names)
    return entry_step < checkpoint_step or (entry_step == checkpoint_step and is_earlier_name)


def truncate(folder: Path, step: int, is_scored: bool) -> None:
    """Delete the entries after a checkpoint, incomplete records and empty files from the event files of a run."""
    event: Any = event_pb2
    for path in sorted(folder.rglob("*tfevents*")):
        prefix = "" if path.parent == folder else f"{path.parent.name}/"
        loader: Any = RawEventFileLoader(str(path))
        records: list[bytes] = list(loader.Load())
        entries: list[Any] = [event.Event.FromString(record) for record in records]
        tags = [[f"{prefix}{value.tag}" for value in entry.summary.value] for entry in entries]
        kept = [i for i, entry in enumerate(entries) if precedes_checkpoint(entry.step, tags[i], step, is_scored)]
        if any(tags[i] for i in kept):
            _write_records(path, [records[i] for i in kept])
        else:
            path.unlink()


def _write_records(path: Path, records: Iterable[bytes]) -> None:
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        writer: Any = RecordWriter(file)
        for record in records:
            writer.write(record)
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
