"""`tmt export --to ctranslate2`: a folder that CTranslate2 loads, with tokenizers and a script that translates.

DIR/
  model.bin  config.json  *vocabulary.json   as the engine reads them
  src_tokenizer.json  tgt_tokenizer.json     as the tokenizers library reads them
  export.json                                where it came from; how it translates; how it compares
  translate.py                               text to text, with ctranslate2 and tokenizers alone
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__
from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.export.weights import refuse_existing
from transformer_mt.pipeline import data as material
from transformer_mt.runs.folder import EXPORT, RunFolder
from transformer_mt.system import files

if TYPE_CHECKING:
    from transformer_mt.export.parity import Parity

COMPARED = 100  # sentences
MOST_POSITIONS = 8192
SCRIPT = Path(__file__).with_name("translate_script.py")


@dataclass(frozen=True)
class Limits:
    """How long sequences may be, as `tmt translate` has it, within a table of positions."""

    positions: int
    source: int  # tokens without control symbols; longer sources are cut

    @classmethod
    def of(cls, translator: Translator) -> Limits:
        """Room for the longest source with its control symbols, and for the longest translation."""
        controls, config = translator.tokenizers.source_controls, translator.config
        longest = max(config.max_source_length + controls, config.limit(config.max_source_length))
        most = translator.model.config.longest or min(MOST_POSITIONS, longest)
        return cls(most, min(config.max_source_length, most - controls))


def to_ctranslate2(
    run: RunFolder, which: str, output: Path, quantization: str, texts: Sequence[str] | None
) -> list[str]:
    """Write a checkpoint into a new folder, compare the two engines, and say what was found.

    Without texts, validation sentences are compared. Raises `UserError` for a model that the engine cannot hold.
    """
    refuse_existing(output)
    check_engine(quantization)
    from transformer_mt.export import ctranslate2_model

    config = configuration.load(run.config)
    check_model(run, config)
    step = run.checkpoint(which).step
    translator = Translator.load(run.path, str(step), "cpu", precision="fp32")
    limits = Limits.of(translator)
    lines: list[str] = []
    if texts is None:
        texts = validation_texts(config, lines)
    with files.atomic_new_folder(output) as beside:
        ctranslate2_model.save(translator, limits.positions, quantization, beside)
        for side, tokenizer in (("src", translator.tokenizers.src), ("tgt", translator.tokenizers.tgt)):
            files.write_text(beside / f"{side}_tokenizer.json", tokenizer.to_json())
        shutil.copyfile(SCRIPT, beside / "translate.py")
        found = compare(translator, beside, limits, texts)
        about = describe(run, config, step, quantization, limits, translator, found)
        files.write_text(beside / EXPORT, json.dumps(about, ensure_ascii=False, indent=1) + "\n")
    lines.append(f"{output}: {run.path}, step {step:,}, {quantization}, {files.size(files.used(output))}")
    lines += report(found, quantization)
    return [*lines, f"python {quote(str(output / 'translate.py'))} < F > G translates lines"]


def check_engine(quantization: str) -> None:
    """Raise `UserError` where the engine is not installed, or does not know the quantization."""
    try:
        from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
    except ImportError:
        raise UserError("export: --to ctranslate2 needs one more package: pip install ctranslate2") from None
    if quantization not in ACCEPTED_MODEL_TYPES:
        raise UserError(f"--quantization {quantization}: CTranslate2 has {', '.join(ACCEPTED_MODEL_TYPES)}")


def check_model(run: RunFolder, config: Config) -> None:
    """Raise `UserError` for a model that the engine cannot hold, or would translate with otherwise."""
    found = list(config.unsupported_by_ctranslate2())
    if not found:
        return
    lines = "\n".join(f"  {section}.{key}: {why}" for section, key, why in found)
    remedy = (
        "(for a new run; with export: ctranslate2 in its YAML it is checked before the training)"
        if any(section == "model" for section, *_ in found)
        else f"(it may be changed in {run.config})"
    )
    raise UserError(f"{run.path}: CTranslate2 cannot hold this model:\n{lines}\n{remedy}")


def validation_texts(config: Config, lines: list[str]) -> list[str]:
    """The run's validation sentences; none where they cannot be read any more, which is added to the lines."""
    try:
        return material.load_validation(config).column("src")
    except (UserError, OSError) as error:
        lines.append(
            f"the validation sentences cannot be read: {error}\n--src F has the engines compared on the lines of a file"
        )
        return []


def compare(translator: Translator, folder: Path, limits: Limits, texts: Sequence[str]) -> Parity | None:
    """The two engines on the first sentences that are not blank, if there are any; an empty source is none for one."""
    from transformer_mt.export import parity
    from transformer_mt.export.ctranslate2_engine import Engine

    chosen = [text for text in texts if text.strip()][:COMPARED]
    sources = [ids[: limits.source] for ids in translator.tokenizers.src.encode(chosen) if ids]
    if not sources:
        return None
    engine = Engine(folder, translator.tokenizers, translator.config, limits.positions, scores=False)
    return parity.compare(translator, engine, sources)


def report(found: Parity | None, quantization: str) -> list[str]:
    """The figures of the comparison, and a warning where they should be better."""
    if found is None:
        return ["the two engines were not compared: there was no sentence to translate"]
    if quantization == "float32" and not found.is_close:
        return [str(found), "warning: the two differ more than rounding explains: do not rely on this export"]
    return [str(found)]


def describe(
    run: RunFolder,
    config: Config,
    step: int,
    quantization: str,
    limits: Limits,
    translator: Translator,
    found: Parity | None,
) -> dict[str, Any]:
    """What export.json says."""
    data = {key: getattr(config.data, key) for key in ("src_lang", "tgt_lang", "max_length")}
    packages = ("ctranslate2", "tokenizers", "torch")
    return {
        "run": str(run.path),
        "step": step,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"transformer-mt": __version__, **{package: metadata.version(package) for package in packages}},
        "quantization": quantization,
        "data": data,
        "source_bos": translator.tokenizers.source_bos,
        "positions": limits.positions,
        "longest_source": limits.source,
        "decoding": translator.config.model_dump(mode="json"),
        "compared": found and asdict(found),
    }
