"""Import of a pretrained model: read the files of another toolkit, check every tensor, and write a run folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from transformer_mt.data.text_files import read_lines
from transformer_mt.errors import UserError
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.export import write_weights_run
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import FORMAT, collect_provenance
from transformer_mt.system import files
from transformer_mt.tools.importing.imported_model import ImportedModel, Languages
from transformer_mt.tools.importing.source_files import validate
from transformer_mt.tools.importing.sources import open_source, read_source
from transformer_mt.tools.vocabulary.pruning import prune

MAX_TRAINING_LENGTH = 256  # data.max_length of a model that can read more


def import_model(
    source: str,
    output: Path,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    languages: str | None = None,
    *,
    corpus: Sequence[Path] = (),
) -> list[str]:
    """Write a run folder with the model in `source`: a folder, a file, or a name on the Hugging Face hub.

    `src_lang` and `tgt_lang` replace those that the source names. `languages` lists codes to keep, separated by commas.
    The vocabulary is pruned to the text of `corpus`, if there is one. Returns lines to print. Raises `UserError` before
    anything is written, if the source cannot be imported exactly.
    """
    texts = [line for path in corpus for line in read_lines(path)]
    kept = [code for code in (languages or "").split(",") if code]
    with open_source(source) as folder:
        imported = read_source(folder, Languages(src_lang, tgt_lang, kept))
    n_parameters = check_weights(imported)
    lines: list[str] = []
    if texts:
        sizes = imported.tokenizers.tgt.vocab_size, n_parameters
        tokenizers, weights = prune(imported.tokenizers, imported.weights, texts)
        imported = replace(imported, tokenizers=tokenizers, weights=weights)
        n_parameters = check_weights(imported)
        lines.append(
            f"pruned with {len(texts):,} lines: {sizes[0]:,} to {imported.tokenizers.tgt.vocab_size:,} target symbols, "
            f"{sizes[1]:,} to {n_parameters:,} parameters"
        )
    config = make_config(imported, output, source)
    what = f"imported from {source} ({imported.format})"
    record: dict[str, Any] = {
        "format": FORMAT,
        "provenance": {
            **collect_provenance("unknown hardware"),
            "imported": {"from": source, "format": imported.format, "sha256": imported.sha256},
        },
        "parameters": n_parameters,
        "report": [f"{what}: its training pairs are unknown"],
        "sha256": {"train": "unknown"},
        "exported": {"what": what},
    }
    write_weights_run(output, config, imported.tokenizers, record, imported.weights, 0, "loss", {})
    size = files.format_bytes(files.measure_folder(output))
    return [
        *lines,
        f"{output}: {imported.format}, {n_parameters:,} parameters, {imported.tokenizers.tgt.vocab_size:,} target "
        f"symbols, {size}",
    ]


def check_weights(imported: ImportedModel) -> int:
    """Compare names and shapes with those of the model. Returns the number of parameters."""
    with torch.device("meta"):
        model = Transformer(imported.model, imported.tokenizers.src, imported.tokenizers.tgt)
    if misfit := next(checkpoints.find_weight_mismatches(model, imported.weights), None):
        raise UserError(f"import: {misfit}")
    return sum(tensor.numel() for tensor in imported.weights.values())


def make_config(imported: ImportedModel, output: Path, source: str) -> Config:
    """Return the configuration of the run. Raises `UserError` for a language or tag that it cannot have."""
    first, *_ = imported.directions
    pretrained = f"{source} ({imported.format})"
    train: object = {"pretrained": pretrained}
    if len(imported.directions) > 1 or first.tag:
        names = [re.sub(r"\W", "-", each.tag or "untagged") for each in imported.directions]
        train = [
            {"name": name, "pretrained": pretrained, **each._asdict()}
            for name, each in zip(names, imported.directions, strict=True)
        ]
    longest = imported.model.max_sequence_length or MAX_TRAINING_LENGTH
    n_controls = imported.tokenizers.n_source_controls
    values = {
        "name": output.name,
        "data": {
            "src_lang": first.src_lang,
            "tgt_lang": first.tgt_lang,
            "train": train,
            "max_length": min(MAX_TRAINING_LENGTH, longest - n_controls),
        },
        "tokenizer": {"kind": imported.tokenizer_kind, "joint": imported.tokenizers.joint},
        "model": imported.model.model_dump(),
        "decoding": {**imported.decoding},
    }
    return validate(Config, values, source)
