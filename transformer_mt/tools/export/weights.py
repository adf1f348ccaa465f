"""Export of weights only: a run folder with one checkpoint and without training state."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transformer_mt.decoding.interface import shorten_weights_hash
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.metadata import TEST_KEYS, write_metadata
from transformer_mt.runs.records import CheckpointInfo
from transformer_mt.system import files
from transformer_mt.tools.analysis.confidence import Calibration


def make_exported_record(source: RunFolder, what: str, steps: list[int]) -> dict[str, Any]:
    """Return the content of `run.json` of an exported folder.

    `what` describes the weights, and `steps` lists the training steps that they come from. Test scores are kept only if
    they were measured with exactly these weights.
    """
    record = source.read_metadata()
    if steps != [record.get("tested", {}).get("step")]:
        record = {key: value for key, value in record.items() if key not in TEST_KEYS}
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {**record, "exported": {"what": what, "steps": steps, "run": str(source.path), "created": created}}


def write_folder(
    source: RunFolder,
    output: Path,
    model: Transformer,
    checkpoint: CheckpointInfo,
    record: Mapping[str, Any],
    readme: str,
) -> None:
    """Write a run folder with one checkpoint atomically.

    `checkpoint` gives the step and validation scores of the weights, and their files in `source`, if there are any;
    `record` becomes `run.json`. Configuration, tokenizers and a calibration with these weights are copied.
    """
    with files.atomic_new_folder(output) as folder:
        run = RunFolder(folder)
        shutil.copyfile(source.config, run.config)
        shutil.copyfile(source.tokenizer, run.tokenizer)
        write_metadata(run, record)
        path = run.checkpoints / checkpoint.path.name
        checkpoints.save(CheckpointInfo(path, checkpoint.step, checkpoint.metric, checkpoint.scores), model, None)
        files.write_text(run.readme, readme)
        _copy_calibration(source, checkpoint, run)


def _copy_calibration(source: RunFolder, checkpoint: CheckpointInfo, run: RunFolder) -> None:
    """Copy the calibration if it is that of the checkpoint, with the checksum of the new file of its weights."""
    with suppress(FileNotFoundError, ValidationError):
        calibration = Calibration.model_validate_json(files.read_bytes(source.calibration))
        if checkpoint.files and calibration.weights_hash == shorten_weights_hash(checkpoint):
            weights_hash = shorten_weights_hash(run.find_checkpoint("last"))
            calibration = calibration.model_copy(update={"weights_hash": weights_hash})
            run.calibration.write_text(calibration.model_dump_json(indent=1) + "\n", encoding="utf-8")
