"""Weights alone: a run folder with one checkpoint, and nothing of the state of its training."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from transformer_mt.config import root as configuration
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline import run_metadata
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import CheckpointInfo, RunFolder
from transformer_mt.system import files


def export(run: RunFolder, which: str, output: Path) -> list[str]:
    """`tmt export --to weights`: write a checkpoint's weights into a new folder; say what is there."""
    refuse_existing(output)
    info = run.checkpoint(which)
    model = Translator.load(run.path, str(info.step), "cpu", precision="fp32").model
    write(run, output, model, info, {"what": f"from {run.path}, step {info.step:,}", "steps": [info.step]})
    return [
        f"{output}: the weights of {run.path}, step {info.step:,}, {files.size(files.used(output))}; in place of a "
        "run, tmt translate, score, evaluate, compare, tokenize, plot and export read it, and train.init_from begins "
        "with it"
    ]


def write(
    source: RunFolder, output: Path, model: Transformer, info: CheckpointInfo, exported: Mapping[str, Any]
) -> None:
    """Write the folder, whole or not at all. `info`: step and scores of these weights; `exported`: where they are from.

    The scores of the test sets are taken along where they were made with these weights.
    """
    config, record = configuration.load(source.config), source.read_record()
    if exported["steps"] != [record.get("tested", {}).get("step")]:
        record = {key: value for key, value in record.items() if key not in run_metadata.OF_THE_TESTS}
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record["exported"] = {**exported, "run": str(source.path), "created": created}
    with files.atomic_new_folder(output) as beside:
        run = RunFolder(beside)
        shutil.copyfile(source.config, run.config)
        shutil.copyfile(source.tokenizer, run.tokenizer)
        run_metadata.write(run, record)
        folder = run.checkpoints / info.path.name
        checkpoints.save(CheckpointInfo(folder, info.step, info.metric, info.scores), model, None)
        files.write_text(
            run.readme, run_metadata.card(RunFolder(output), config, record, info if info.scores else None)
        )


def refuse_existing(output: Path) -> None:
    """Raise `UserError` where something has this name already."""
    if output.exists() or output.is_symlink():
        raise UserError(f"{output}: exists already; name a new folder (--output)")
