"""The README of a run folder, and the list of runs with their status."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from pydantic import Field, ValidationError

from transformer_mt.data.data_config import DataConfig
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.runs.folder import RunFolder, is_locked
from transformer_mt.runs.records import (
    CheckpointInfo,
    Count,
    Hours,
    Record,
    RunRecord,
    rank_checkpoints,
    split_by_source,
)
from transformer_mt.system.files import measure_folder, open_regular_file, refuse_special_files, write_text
from transformer_mt.system.log import LAYOUT, make_visible

LAST_TIME = 253_370_764_800.0  # the year 9999, after which Python has no dates
TAIL_BYTES = 1 << 16  # of metrics.jsonl; it has the last log entry


class LogEntry(Record, extra="ignore"):
    """The keys of a line of `metrics.jsonl` that the status needs."""

    step: Count | None = None
    hours: Hours | None = Field(default=None, alias="train/hours")


def find_status(record: RunRecord, step: int | None, *, is_running: bool) -> str:
    """Return finished, stopped, running, failed or weights only. `step` is the last one of the run."""
    if is_running:
        return "running"
    if record.exported:
        return "weights only"
    if record.failed:
        return "failed"
    is_resumed = record.last_step is not None and (step or 0) > record.last_step  # with a higher limit
    return "finished" if record.ended and not is_resumed else "stopped"


def describe_status(run: RunFolder, record: RunRecord, max_steps: int | None, *, is_running: bool) -> str:
    """Return the status with the last step, and why the training ended or failed."""
    step = find_last_step(record, read_last_log_entry(run), run.list_readable_checkpoints())
    status = find_status(record, step, is_running=is_running)
    if status == "weights only":
        return f"{status} of a training that ended: {record.ended}" if record.ended else status
    limit = "" if max_steps is None else f" of {max_steps:,}"
    place = "" if step is None else f" at step {step:,}{limit}"
    reason = {"finished": record.ended, "failed": record.failed}.get(status)
    return f"{status}{place}" + (f": {' '.join(reason.split())}" if reason else "")


def find_last_step(record: RunRecord | None, logged: LogEntry, checkpoints: Sequence[CheckpointInfo]) -> int | None:
    """Return the last step that was recorded, logged or saved."""
    steps = [record and record.last_step, logged.step, *(info.step for info in checkpoints)]
    return max((step for step in steps if step is not None), default=None)


def read_last_log_entry(run: RunFolder) -> LogEntry:
    """Return the last step and hours near the end of `metrics.jsonl`."""
    last = LogEntry()
    try:
        with open_regular_file(run.metrics) as file:
            file.seek(max(0, run.metrics.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()
    except OSError:  # no step was logged yet
        return last
    for line in lines:
        with suppress(ValidationError):  # cut at the start of the tail, not written completely yet, or damaged
            entry = LogEntry.model_validate_json(line)
            last = last.model_copy(update=entry.model_dump(exclude_none=True))
    return last


def write_readme(run: RunFolder, config: Config, *, is_running: bool) -> None:
    """Replace the README of a run folder. `is_running` says whether the training continues."""
    found = run.list_readable_checkpoints()
    best = next(iter(rank_checkpoints(found)), None)
    write_text(run.readme, render_readme(run, config, run.read_record(), best, is_running=is_running))


def render_readme(
    run: RunFolder, config: Config, record: RunRecord, best: CheckpointInfo | None, *, is_running: bool = False
) -> str:
    """Return the Markdown text from the content of `run.json` and the best checkpoint, if any."""
    provenance = record.provenance
    status = describe_status(run, record, config.train.max_steps, is_running=is_running)
    if is_running:
        status = f"{status} when this file was written"
    can_translate = bool(record.exported or best or run.list_readable_checkpoints())
    origin = "trained" if provenance.init_from else "trained from scratch"
    if provenance.imported:
        origin = "imported"
    machine = f"- Trained on {provenance.hardware}, {config.precision}, seed {config.seed}"
    lines = [
        f"# {config.name}",
        "",
        f"A Transformer that translates {describe_directions(config.data)}, {origin} with transformer-mt "
        f"{provenance.versions['transformer-mt']}.",
        "",
        f"- Model: {describe_model(config)}, {record.parameters:,} parameters",
        *([] if provenance.imported else [machine]),
        *(f"- {fact}" for fact in _describe_training(record, status)),
        "",
        "## Data",
        *(f"- {line}" for line in record.report),
        *(f"- Fingerprint of {name}: `{digest}`" for name, digest in record.sha256.items()),
        "",
        "## Scores",
        *_describe_scores(record, best),
        "",
        "## Next commands",
        "",
        "```bash",
        format_next_commands(run, config)
        if can_translate
        else f"tmt train --config {quote(str(run.config))}  # no checkpoint yet: train, or start again after a stop",
        "```",
        "",
        "`config.yaml` holds every setting; `run.json` holds the versions and the machine.",
    ]
    return make_visible("\n".join(lines), keep=LAYOUT) + "\n"


def describe_model(config: Config) -> str:
    """Return the shape of the model in words."""
    model = config.model
    stacks = [model.for_stack(stack) for stack in (model.encoder, model.decoder)]
    d_ff, heads = (
        " + ".join(dict.fromkeys(str(getattr(stack, key)) for stack in stacks)) for key in ("d_ff", "n_heads")
    )
    return (
        f"{model.encoder.n_layers} + {model.decoder.n_layers} layers, width {model.d_model}, feed-forward {d_ff}, "
        f"{heads} heads, {model.norm_position}-norm"
    )


def describe_directions(data: DataConfig) -> str:
    """Return the directions of the training pairs, with their tags."""
    directions = (
        " into ".join(source.languages(data.src_lang, data.tgt_lang)) + (f" (tag {source.tag})" if source.tag else "")
        for source in data.train_sources
    )
    return ", ".join(dict.fromkeys(directions))


def format_next_commands(run: RunFolder, config: Config) -> str:
    """Return the commands that follow a training, one per line, with comments."""
    folder = quote(str(run.path))
    tag = f" --tag {config.data.tags[0]}" if config.data.needs_tag and config.decoding.tag is None else ""
    evaluate_options = "" if config.data.test else f"{tag} --src F --ref G"
    commands = {
        f"tmt translate {folder}{tag}": "translate at a prompt, or standard input",
        f"tmt translate {folder}{tag} --input F --output G": "translate a file",
        f"tmt evaluate {folder}{evaluate_options}": "scores with 95 % intervals",
        f"tensorboard --logdir {folder}": "curves and translations",
    }
    width = max(map(len, commands))
    return "\n".join(f"{command:<{width}}  # {purpose}" for command, purpose in commands.items())


def _describe_training(record: RunRecord, status: str) -> Iterator[str]:
    if warm_start := record.provenance.init_from:
        yield f"Started from the weights of {warm_start.path}, step {warm_start.step:,}"
    yield f"Status: {status}"
    if record.hours is not None:
        yield f"Hours of training: {record.hours:.2f}"
    if record.exported:
        yield f"Weights only: {record.exported.what}"


def _describe_scores(record: RunRecord, best: CheckpointInfo | None) -> Iterator[str]:
    if best is None:
        yield "Not validated yet."
    else:
        chosen = "" if record.exported else f"the best by {best.metric}, "
        for title, found in split_by_source(best.scores).items():
            scores = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
            yield f"- {title}, at step {best.step:,} ({chosen}greedy): {scores}"
    for name, scores in record.test.items():
        for metric, score in scores.items():
            yield f"- {name}, at step {record.tested.step:,}: {metric} {score.value:.2f} (`{score.signature}`)"
    if record.before_and_after:
        yield from ("", "### Before and after the training", "", *record.before_and_after)


@dataclass(frozen=True)
class RunSummary:
    """Status, progress and size of a run. Values that are missing or unreadable are None."""

    name: str  # path below the listed folder
    path: str
    status: str  # finished, stopped, running, failed, weights only or damaged
    problem: str | None  # why it failed, or what is damaged
    step: int | None
    max_steps: int | None
    metric: str | None
    score: float | None  # best one by `metric`
    hours: float | None
    parameters: int | None
    n_bytes: int
    directions: tuple[str, ...]  # of the training pairs, such as en-de
    changed: float  # seconds since the epoch


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders at and below a folder, by name. Hidden folders and those inside of a run are skipped."""
    pending = [folder]
    while pending:
        path = pending.pop()
        with suppress(OSError):  # not readable, or removed meanwhile
            metadata = RunFolder(path).metadata
            if os.path.lexists(metadata) and not metadata.is_dir():
                yield path
            elif path == folder or not path.is_symlink():  # a link is not searched: it may lead in a circle
                entries = sorted(os.scandir(path), key=lambda entry: entry.name, reverse=True)
                folders = (Path(entry) for entry in entries if not entry.name.startswith("."))
                pending += [folder for folder in folders if folder.is_dir()]


def list_runs(folder: Path) -> list[RunSummary]:
    """Summarise all runs at and below a folder, sorted by name. A damaged run is listed as such.

    Raises `UserError` if the folder does not exist.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder (looked in {Path.cwd()}); `tmt train` makes runs under runs/")
    summaries: list[RunSummary] = []
    for path in find_runs(folder):
        try:
            name = path if path == folder else path.relative_to(folder)
            summaries.append(summarise_run(RunFolder(path), str(name)))
        except FileNotFoundError:  # removed while it was read
            if path.exists():
                raise
    return sorted(summaries, key=lambda run: run.name)


def summarise_run(run: RunFolder, name: str) -> RunSummary:
    """Summarise a run."""
    problem, record, max_steps = None, None, None
    directions: tuple[str, ...] = ()
    logged, checkpoints = LogEntry(), list[CheckpointInfo]()
    try:
        refuse_special_files(run.path)
        logged = read_last_log_entry(run)
        checkpoints = run.list_readable_checkpoints()
        record = run.read_record()
        config = configuration.load_run(run)
        max_steps, data = config.train.max_steps, config.data
        pairs = (source.languages(data.src_lang, data.tgt_lang) for source in data.train_sources)
        directions = tuple(dict.fromkeys(map("-".join, pairs)))
        checkpoints = run.list_checkpoints()
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    except Exception as error:  # a file that somebody else has made can cause any exception
        problem = str(error) or type(error).__name__
    best = next(iter(rank_checkpoints(checkpoints)), None)
    step = find_last_step(record, logged, checkpoints)
    files = (run.path, run.metadata, run.metrics, run.checkpoints)
    return RunSummary(
        name=name,
        path=str(run.path),
        status=find_status(record, step, is_running=is_locked(run.path)) if record and not problem else "damaged",
        problem=problem or (record and record.failed) or None,
        step=step,
        max_steps=max_steps,
        metric=best and best.metric,
        score=best and best.score,
        hours=max(filter(None, (record and record.hours, logged.hours)), default=None),
        parameters=record and record.parameters,
        n_bytes=measure_folder(run.path),
        directions=directions,
        changed=min(max(path.stat().st_mtime for path in files if path.exists()), LAST_TIME),
    )
