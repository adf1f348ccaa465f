"""What a run writes down about itself: `run.json`, with what it was made of, and the README of its folder."""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any

from transformer_mt import __version__
from transformer_mt.config.rendering import render_yaml
from transformer_mt.config.root import Config
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import FORMAT, CheckpointInfo, RunFolder, ranked
from transformer_mt.system import launcher
from transformer_mt.system.device import Machine, describe
from transformer_mt.system.files import write_text

OF_THE_TESTS = ("tested", "test")
OF_THE_END = ("ended", "last_step", "hours", *OF_THE_TESTS)


def check_text(run: RunFolder, fingerprints: Mapping[str, str]) -> None:
    """Raise `UserError` where the text of a table is another than when the run began."""
    if run.exists() and run.read_record()["sha256"] != fingerprints:
        raise UserError(
            f"{run.path}: the text of the data has changed since the run began; restore it, or use --restart or name="
        )


def is_of_this_job(run: RunFolder) -> bool:
    """Whether the last one to train a run was this job, which has been started more than once then."""
    return run.exists() and run.read_record().get("job") == launcher.job_id()


def begin(
    run: RunFolder,
    config: Config,
    machine: Machine,
    parameters: int,
    report: list[str],
    fingerprints: Mapping[str, str],
    init_from: Mapping[str, Any] | None,
) -> None:
    """Write down what this run is; what earlier starts wrote about its end is kept until there is a new one.

    `fingerprints`: of the text of each table; `init_from`: whose weights it begins with, if not its own.
    """
    run.before_writing()
    earlier = run.read_record() if run.exists() else {}
    made = earlier.get("provenance") or provenance(machine)
    record = {
        **earlier,
        "format": FORMAT,
        "provenance": {**made, "init_from": init_from} if init_from else made,
        "processes": launcher.local_world_size(),
        "parameters": parameters,
        "report": report,
        "sha256": {**fingerprints},
    }
    write_text(run.config, render_yaml(config))
    write(run, record)


def provenance(machine: Machine) -> dict[str, Any]:
    """With what, where and when."""
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "transformer-mt": __version__,
            "python": platform.python_version(),
            **dict(_versions("torch", "datasets", "tokenizers", "sacrebleu", "sacremoses", "numpy")),
        },
        "commit": commit(),
        "hardware": describe(machine.device),
        "system": platform.platform(),
    }


def _versions(*packages: str) -> Iterator[tuple[str, str]]:
    """Of those that are installed."""
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            yield package, metadata.version(package)


def commit() -> str | None:
    """The commit of this program, where it runs from a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write(run: RunFolder, record: Mapping[str, Any]) -> None:
    """Replace `run.json`."""
    run.before_writing()
    write_text(run.record, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def record_resume(run: RunFolder, config: Config, step: int) -> None:
    """Write down that this job trains a run on from a step: it has done then what its options say about the start, and
    what stands there of an end at a later step is no longer so."""
    record: dict[str, Any] = {**run.read_record(), "job": launcher.job_id()}
    if step < record.get("last_step", math.inf):
        record = {key: value for key, value in record.items() if key not in OF_THE_END}
    write(run, record)
    write_card(run, config)


def known_scores(run: RunFolder, tested: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]] | None:
    """What a checkpoint, searched in a certain way, has on each test set, where that has been found: by name and
    metric."""
    record = run.read_record()
    return record["test"] if record.get("tested") == tested else None


def end(
    run: RunFolder,
    ended: str,
    last_step: int,
    hours: float,
    tested: Mapping[str, Any],
    test: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write down how a training ended, and with `tested` has the scores `test`."""
    of_the_end = zip(OF_THE_END, (ended, last_step, hours, tested, test), strict=True)
    write(run, {**run.read_record(), **dict(of_the_end)})


def write_card(run: RunFolder, config: Config) -> None:
    """Replace the run's README by what is known now."""
    run.before_writing()
    best = next(iter(ranked(run.readable_checkpoints())), None)
    write_text(run.readme, card(run, config, run.read_record(), best))


def card(run: RunFolder, config: Config, record: Mapping[str, Any], best: CheckpointInfo | None) -> str:
    """The text, from what the run folder knows."""
    model, made = config.model, record["provenance"]
    folder, parent = quote(str(run.path)), quote(str(run.path.parent))
    sides = [model.of(stack) for stack in (model.encoder, model.decoder)]
    d_ff, heads = (" + ".join(dict.fromkeys(str(getattr(side, key)) for side in sides)) for key in ("d_ff", "n_heads"))
    lines = [
        f"# {config.name}",
        "",
        f"A Transformer that translates {config.data.src_lang} into {config.data.tgt_lang}, trained from scratch with "
        f"transformer-mt {made['versions']['transformer-mt']}.",
        "",
        f"- Model: {model.encoder.n_layers} + {model.decoder.n_layers} layers, width {model.d_model}, feed-forward "
        f"{d_ff}, {heads} heads, {model.norm_position}-norm, {record['parameters']:,} parameters",
        f"- Trained on {made['hardware']}, {config.precision}, seed {config.seed}",
        *(f"- {fact}" for fact in _facts(record)),
        "",
        "## Data",
        *(f"- {line}" for line in record["report"]),
        *(f"- Fingerprint of {name}: `{digest}`" for name, digest in record["sha256"].items()),
        "",
        "## Scores",
        *_scores(record, best),
        "",
        "## What to type next",
        "",
        "```bash",
        f"tmt translate {folder}                # a prompt, or standard input",
        f"tmt translate {folder} --input F --output G",
        f"tmt evaluate {folder} --src F --ref G",
        f"tensorboard --logdir {parent}",
        "```",
        "",
        "`config.yaml` holds every setting; `run.json` says with which versions and on what machine it was made.",
    ]
    return "\n".join(lines) + "\n"


def _facts(record: Mapping[str, Any]) -> Iterator[str]:
    """How the training went so far."""
    if begun := record["provenance"].get("init_from"):
        yield f"Begun with the weights of {begun['path']}, step {begun['step']:,}"
    at = f" (step {record['last_step']:,})" if "last_step" in record else ""  # early runs did not write it down
    yield f"Status: {record.get('ended', 'in training, or interrupted')}{at}"
    if "hours" in record:
        yield f"Hours of training: {record['hours']:.2f}"
    if exported := record.get("exported"):
        yield f"Weights alone: {exported['what']}"


def _scores(record: Mapping[str, Any], best: CheckpointInfo | None) -> Iterator[str]:
    """Of the best checkpoint on the validation pairs, and on each test set."""
    if best is None:
        yield "Not validated yet."
    else:
        scores = ", ".join(f"{name} {value:.3f}" for name, value in best.scores.items())
        chosen = "" if "exported" in record else f"the best by {best.metric}, "
        yield f"- validation, at step {best.step:,} ({chosen}greedy): {scores}"
    if "test" not in record:
        return
    tested = record["tested"]["step"]
    for name, scores in record["test"].items():
        for metric, score in scores.items():
            yield f"- {name}, at step {tested:,}: {metric} {score['value']:.2f} (`{score['signature']}`)"
