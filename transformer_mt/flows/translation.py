"""Loading of a translator: a run, an ensemble or an exported folder, with the engine that suits the machine."""

from __future__ import annotations

import gc
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.choices import SplitWhen
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import EXPORT, RunFolder
from transformer_mt.system.device import configure_process, is_cpu, keep_freed_memory, resolve_machine
from transformer_mt.system.log import log_rank0

if TYPE_CHECKING:  # translator, guard and engines are imported after mistakes in the arguments were reported
    from transformer_mt.decoding.engine import TorchEngine
    from transformer_mt.decoding.interface import LoadedRun
    from transformer_mt.decoding.text_stages import TextStage
    from transformer_mt.decoding.translator import Features, Translator
    from transformer_mt.tools.robustness.guard import FaultReport


NO_ALIGNMENTS = "--alignments: CTranslate2 has no word alignments"


@dataclass(frozen=True)
class LoadOptions:
    """How a model is loaded."""

    checkpoint: str = "best"
    """best, last, or the number of a step."""
    device: str = "auto"
    """auto, or a device of PyTorch such as cpu, cuda or mps."""
    threads: int | str = "auto"
    """CPU threads, or auto. PyTorch ignores it unless `owns_process` is set."""
    precision: str = "auto"
    """Precision of the matrix products (fp32, bf16 or fp16); auto takes the fastest one."""
    ensemble: str | Path | Sequence[str | Path] = ()
    """Further runs with the same vocabulary, loaded at the same checkpoint. The first run's settings apply."""
    few_texts: bool = False
    """Whether only a few texts are translated. Precision auto is then fp32 on a CPU, where bf16 needs large batches."""
    split: SplitWhen = "auto"
    """Which lines are divided into sentences (auto, long, always or never)."""
    alignments: bool = False
    """Whether word alignments are needed, which CTranslate2 alone does not have."""
    fault_report: FaultReport | None = None
    """Records the lines whose translations the guard repairs."""
    owns_process: bool = False
    """Whether threads, allocator and caches of this process may be configured, as in a command."""


def load_translator(run: str | Path, options: LoadOptions | None = None, **decoding: object) -> Translator:
    """Load a run folder, or a folder that `tmt export --to ctranslate2` wrote. The training data is not needed.

    On a CPU, `decoding.engine: auto` searches with CTranslate2 if it supports the model and the options, and uses
    PyTorch for what it lacks. The choice is logged.

    Args:
        run: The folder.
        options: How it is loaded.
        **decoding: Keys of the section `decoding`, such as `beam=1`. They override those of the run.

    Raises:
        UserError: A checkpoint cannot be read, the runs of an ensemble do not fit together, an option is invalid, or
            the chosen engine cannot translate.
    """
    options, path = options or LoadOptions(), Path(run)
    if is_exported(path):
        return _load_exported(path, options, decoding)
    others = [options.ensemble] if isinstance(options.ensemble, str | Path) else options.ensemble
    folders = [RunFolder.open(each) for each in (path, *map(Path, others))]
    config = folders[0].read_section("decoding", DecodingConfig).with_options(decoding)
    if "length_penalty_exponent" in decoding and config.n_beams == 1:
        raise UserError("decoding.length_penalty_exponent: ranks hypotheses, and there is only one: raise --beam")
    for folder in folders:
        folder.find_checkpoint(options.checkpoint)
    with _collect_no_garbage(options.owns_process):
        return _load_converted(folders[0], config, options) or _load_torch(folders, config, options)


def is_exported(path: Path) -> bool:
    """Return whether `tmt export --to ctranslate2` wrote a folder."""
    return (path / EXPORT).exists() and not RunFolder(path).exists()


@contextmanager
def _collect_no_garbage(owns_process: bool) -> Generator[None]:
    """Collect no garbage in a process that is ours: importing torch makes many objects that live until the end.

    To search them takes half a second.
    """
    if not owns_process:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _load_torch(folders: Sequence[RunFolder], config: DecodingConfig, options: LoadOptions) -> Translator:
    """Load runs with PyTorch."""
    from transformer_mt.decoding.engine import load_engine
    from transformer_mt.decoding.translator import Translator

    machine = resolve_machine(
        options.device,
        options.precision,
        options.threads,
        few_texts=options.few_texts,
        owns_process=options.owns_process,
    )
    if options.owns_process:
        configure_process(machine)
    engine, runs = load_engine(folders, options.checkpoint, machine.device, machine.precision)
    return Translator(engine, runs[0].tokenizers, config, runs, make_features(config, options))


def _load_converted(run: RunFolder, config: DecodingConfig, options: LoadOptions) -> Translator | None:
    """Load a run with CTranslate2. Return None if PyTorch must translate; the reason is logged."""
    is_required = config.engine == "ctranslate2"
    if config.engine == "torch" or not (is_required or is_cpu(options.device)):
        return None
    from transformer_mt.tools.export.ctranslate2_support import find_torch_reason, find_unsupported_search_keys
    from transformer_mt.tools.export.engine_choice import UnavailableError, load_converted

    try:
        if reason := find_torch_reason(config, options.precision, has_others=bool(options.ensemble)):
            raise UnavailableError(reason)
        if is_required and options.alignments:
            raise UnavailableError(NO_ALIGNMENTS)
        for key, reason in find_unsupported_search_keys(config) if is_required else ():
            raise UnavailableError(f"decoding.{key}: {reason}")
        if options.owns_process:
            keep_freed_memory()
        device = options.device if is_required else "cpu"
        on_cpu = replace(options, device="cpu", precision="fp32")
        engine, loaded = load_converted(
            run,
            options.checkpoint,
            config,
            device,
            options.threads,
            lambda checkpoint: _load_torch([run], config, replace(on_cpu, checkpoint=checkpoint)),
        )
    except UnavailableError as reason:
        if is_required:
            raise UserError(f"--engine ctranslate2: {reason}; use --engine torch instead") from None
        log_rank0(f"tmt: engine torch: {reason}")
        return None
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.export.ctranslate2_engine import CombinedEngine

    if not is_required:
        engine = CombinedEngine(engine, lambda: _load_same_weights(loaded, config, options))
    return Translator(engine, loaded.tokenizers, config, [loaded], make_features(config, options))


def _load_same_weights(loaded: LoadedRun, config: DecodingConfig, options: LoadOptions) -> TorchEngine:
    """Load a checkpoint with PyTorch that CTranslate2 has loaded. Raises `UserError` if it was replaced or deleted."""
    translator = _load_torch([loaded.folder], config, replace(options, checkpoint=str(loaded.step)))
    if translator.runs[0].weights_hash != loaded.weights_hash:
        raise UserError(f"{loaded.folder.path}: a running training replaced step {loaded.step:,}; repeat the command")
    return translator.torch_engine


def _load_exported(folder: Path, options: LoadOptions, decoding: Mapping[str, object]) -> Translator:
    """Load a folder that was exported for CTranslate2."""
    if decoding.get("engine") == "torch":
        raise UserError(
            f"{folder}: is a model for another engine (export.json); use the run that it was exported from, or "
            "leave out --engine"
        )
    if options.ensemble:
        raise UserError(f"--ensemble: {folder} is a model for CTranslate2, which has one model; pass the runs")
    if options.alignments:
        raise UserError(f"{NO_ALIGNMENTS}, and {folder} is a model for it; translate with the run itself")
    try:
        from transformer_mt.tools.export.ctranslate2_engine import load_exported, read_metadata
    except ImportError as error:
        raise UserError(f"{folder}: CTranslate2 cannot be imported ({error}); pip install ctranslate2") from None
    if options.checkpoint != "best":
        step = read_metadata(folder).step
        raise UserError(f"checkpoint {options.checkpoint}: {folder} holds one checkpoint, of step {step:,}")
    from transformer_mt.decoding.translator import Translator

    if options.owns_process:
        keep_freed_memory()
    model = load_exported(folder, options.device, options.threads, options.precision, decoding)
    features = make_features(model.config, options)
    return Translator(
        model.engine, model.tokenizers, model.config, features=features, model_provenance=model.provenance
    )


def make_features(config: DecodingConfig, options: LoadOptions) -> Features:
    """Return what a translator does beyond the search: division of lines, stages, and the guard."""
    from transformer_mt.decoding.translator import Features

    if not config.guard:
        return Features(options.split, _make_stages)
    from transformer_mt.tools.robustness.guard import FaultReport, Guard

    report = options.fault_report or FaultReport()
    return Features(options.split, _make_stages, partial(Guard.make, fault_report=report))


def _make_stages(config: DecodingConfig, tokenizers: TokenizerPair) -> Sequence[TextStage]:
    """Return the stages that section `decoding` asks for. The first call imports their modules."""
    from transformer_mt.tools.markup.stages import make_stages

    return make_stages(config, tokenizers)
