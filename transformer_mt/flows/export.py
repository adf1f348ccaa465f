"""Export of a run: its weights or a mean of them as a run folder, or its model for another program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.text_files import read_lines
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import FORCE_TORCH
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.evaluation import Validator
from transformer_mt.flows.prepare import encode_validation, load_split
from transformer_mt.flows.run_overview import render_readme
from transformer_mt.flows.translation import LoadOptions, load_translator
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs import checkpoints
from transformer_mt.runs.folder import TEST_KEYS, RunFolder, write_record
from transformer_mt.runs.records import CheckpointInfo, rank_checkpoints
from transformer_mt.system import files
from transformer_mt.system.device import configure_process, resolve_machine
from transformer_mt.system.log import log
from transformer_mt.tools.export.ctranslate2_engine import find_unsupported_search_keys
from transformer_mt.training.distributed import Ranks


def write_weights_run(
    output: Path,
    config: Config,
    tokenizers: TokenizerPair,
    record: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    step: int,
    metric: str,
    scores: dict[str, float],
) -> None:
    """Write a new run folder atomically, with a checkpoint of `step` and its scores, without training state."""
    with files.atomic_new_folder(output) as folder:
        run = RunFolder(folder)
        files.write_text(run.config, render_yaml(config))
        tokenizers.save(run.tokenizer)
        write_record(run, record)
        info = CheckpointInfo(run.locate_checkpoint(step), step, metric, scores)
        checkpoints.save(info, weights, None)
        best = info if scores else None
        files.write_text(run.readme, render_readme(RunFolder(output), config, run.read_record(), best))


def make_record(source: RunFolder, what: str, steps: list[int], *, is_changed: bool = False) -> dict[str, Any]:
    """Return the `run.json` of weights from training steps of another run.

    Test scores are kept only if `steps` is exactly the tested step, and the weights are unchanged.
    """
    found = source.read_record()
    record = found.to_json()
    if is_changed or steps != [found.tested.step]:
        record = {key: value for key, value in record.items() if key not in TEST_KEYS}
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {**record, "exported": {"what": what, "steps": steps, "run": str(source.path), "created": created}}


def export_weights(source: RunFolder, averaged: Sequence[CheckpointInfo], output: Path) -> CheckpointInfo:
    """Write the mean of the weights of some checkpoints as a run folder. Return its checkpoint.

    The mean of several is validated like the checkpoints of a training. Raises `UserError` if the validation text
    cannot be read or has changed, or a running training has deleted a checkpoint.
    """
    config, tokenizers = configuration.load_run(source), TokenizerPair.load(source.tokenizer)
    model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
    load_average(model, averaged)
    steps, result = [info.step for info in averaged], averaged[-1]
    what = f"from {source.path}, step {steps[0]:,}"
    if len(averaged) > 1:
        what = f"the mean of {source.path}, steps {', '.join(f'{step:,}' for step in steps)}"
        result = replace(result, scores=_validate(source, config, model, tokenizers))
    settings, weights = configuration.load_settings(source), checkpoints.list_distinct_weights(model.cpu())
    record = make_record(source, what, steps)
    write_weights_run(output, settings, tokenizers, record, weights, result.step, result.metric, result.scores)
    return result


def select_checkpoints(run: RunFolder, n: int, *, takes_best: bool) -> list[CheckpointInfo]:
    """Return the newest or the best checkpoints, oldest first. Raises `UserError` if the run has too few."""
    available = [info for info in run.list_checkpoints() if not info.stopped]
    candidates = rank_checkpoints(available) if takes_best else available[::-1]
    if len(candidates) < n:
        steps = ", ".join(str(info.step) for info in candidates) or "none"
        raise UserError(
            f"export: {run.path} has only {len(candidates)} of {n} checkpoints (steps: {steps});\n"
            "keep.last and keep.best set how many a training keeps"
        )
    return sorted(candidates[:n], key=lambda info: info.step)


def load_average(model: Transformer, averaged: Sequence[CheckpointInfo]) -> None:
    """Load the mean of the weights, which is computed in fp64.

    Raises `UserError` if a running training has deleted a checkpoint.
    """
    sums = {name: torch.zeros_like(parameter, dtype=torch.float64) for name, parameter in model.named_parameters()}
    for info in averaged:
        if not info.path.exists():
            raise UserError(f"{info.path}: was deleted, because the run is being trained; try again")
        checkpoints.load_weights(model, info)
        for name, parameter in model.named_parameters():
            sums[name] += parameter.detach()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sums[name].div(len(averaged)))


def _validate(run: RunFolder, config: Config, model: Transformer, tokenizers: TokenizerPair) -> dict[str, float]:
    """Compute the scores that the training would give these weights, in its precision.

    Raises `UserError` if the validation pairs have changed. Their scores are not comparable, and they may be training
    pairs.
    """
    try:
        pairs = load_split(config, "validation")
    except UserError as error:
        raise UserError(f"export: cannot read the validation pairs to score the mean:\n{error}") from None
    if pairs.fingerprint != run.read_record().sha256.get("validation"):
        raise UserError(f"export: the validation pairs of {run.path} have changed since its training; restore them")
    corpus = encode_validation(config, pairs, tokenizers)
    machine = resolve_machine("auto", config.precision, "auto")
    configure_process(machine)
    model.to(machine.device)
    return Validator(config, machine, Ranks(), model, tokenizers, corpus)().scores


def export_ctranslate2(
    source: RunFolder, checkpoint: str, output: Path, quantization: str, src: Path | None
) -> list[str]:
    """Write a CTranslate2 folder. Return a comparison of both engines on the lines of `src` or the validation set.

    Raises `UserError` if CTranslate2 does not support the model or the search.
    """
    config = _check_ctranslate2(source)
    from transformer_mt.tools.export import ctranslate2_export

    translator = _load_fp32(source, checkpoint)
    return ctranslate2_export.write_folder(translator, output, quantization, _read_sources(config, src))


def export_argos(source: RunFolder, checkpoint: str, output: Path, quantization: str, src: Path | None) -> list[str]:
    """Write a package of Argos Translate. Return a comparison like `export_ctranslate2`.

    Raises `UserError` before the model is loaded, if CTranslate2 or SentencePiece cannot have the model or tokenizer.
    """
    config = _check_ctranslate2(source)
    from transformer_mt.tools.export import argos_package

    sources = _read_sources(config, src)
    lines = sources if src is not None else [*sources, *_read_held_out(config)]
    tokenizers = TokenizerPair.load(source.tokenizer)
    try:
        segmenter = argos_package.make_segmenter(tokenizers, config.decoding, config.model, lines)
    except UserError as error:
        raise UserError(f"{source.path}: cannot be exported to Argos Translate:\n{error}") from None
    translator = _load_fp32(source, checkpoint)
    return argos_package.write_package(translator, segmenter, output, quantization, sources)


def export_onnx(
    source: RunFolder,
    checkpoint: str,
    output: Path,
    quantization: str,
    src: Path | None,
    web: Path | None = None,
) -> list[str]:
    """Write an ONNX folder. Return a comparison like `export_ctranslate2`.

    With `web`, the folder `node_modules` of its libraries, the folder gets a web page.
    Raises `UserError` before the model is loaded, for a search, a quantization or a page that the folder cannot have.
    """
    from transformer_mt.tools.export import onnx_export, web_export

    config = configuration.load_run(source)
    onnx_export.check_settings(config.decoding, quantization)
    libraries: dict[str, Path] = {}
    if web is not None:
        web_export.check_tokenizers(TokenizerPair.load(source.tokenizer))
        libraries = web_export.find_libraries(web)
    translator = _load_fp32(source, checkpoint)
    return onnx_export.write_folder(translator, output, quantization, _read_sources(config, src), libraries)


def export_transformers(source: RunFolder, checkpoint: CheckpointInfo, output: Path) -> None:
    """Write a folder for `MarianMTModel` of Transformers. Raises `UserError` for a model of another shape."""
    from transformer_mt.tools.export import marian_export

    config, tokenizers = configuration.load_run(source), TokenizerPair.load(source.tokenizer)
    languages = config.data.src_lang, config.data.tgt_lang
    try:
        marian_export.make_settings(config.model, tokenizers)
        model = Transformer(config.model, tokenizers.src, tokenizers.tgt)
        load_average(model, [checkpoint])
        weights = checkpoints.list_distinct_weights(model)
        marian_export.write_folder(output, languages, config.model, config.decoding, tokenizers, weights)
    except UserError as error:
        raise UserError(f"{source.path}: cannot be exported to Transformers:\n{error}") from None


def _check_ctranslate2(source: RunFolder) -> Config:
    """Return the configuration of a run. Raises `UserError` if CTranslate2 does not support it."""
    config = configuration.load_run(source)
    if problems := [*find_unsupported_search_keys(config.decoding)]:
        lines = "\n".join(f"  decoding.{key}: {reason}" for key, reason in problems)
        raise UserError(
            f"{source.path}: CTranslate2 does not support these settings:\n{lines}\nchange them in {source.config}"
        )
    return config


def _load_fp32(source: RunFolder, checkpoint: str) -> Translator:
    options = LoadOptions(checkpoint, "cpu", precision="fp32", owns_process=True)
    return load_translator(source.path, options, **FORCE_TORCH)


def _read_sources(config: Config, src: Path | None) -> list[str]:
    if src is not None:
        return list(read_lines(src))
    try:
        return load_split(config, "validation").column("src")
    except (UserError, OSError) as error:
        log(f"the validation sentences cannot be read: {error}\n--src F compares the engines on the lines of a file")
        return []


def _read_held_out(config: Config) -> Iterator[str]:
    """Yield the targets of the validation set, and both sides of the test sets, as far as they can be read."""
    for name in ("validation", *config.data.test):
        with suppress(UserError, OSError):
            for pair in load_split(config, name):
                yield from pair[name == "validation" :]
