"""Export to CTranslate2: a folder with model, tokenizers, metadata and a translation script.

DIR/
  model.bin  config.json  *vocabulary.json   read by CTranslate2
  src_tokenizer.json  tgt_tokenizer.json     read by the tokenizers library
  export.json                                source run, decoding settings and parity check
  translate.py                               translates text; needs only ctranslate2 and tokenizers
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt import __version__
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import EXPORT
from transformer_mt.system import files

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Translator

BATCH_SENTENCES = 16
MIN_IDENTICAL, MAX_DIFFERENCE = 0.99, 1e-3  # thresholds for a float32 model


@dataclass(frozen=True)
class Parity:
    """The result of comparing both engines."""

    sentences: int
    identical: int
    """Number of identical translations."""
    score_difference: float
    """Largest difference between the log-probabilities of a token in our translations."""
    compute_type: str
    """Type in which CTranslate2 computed. Our model computed in fp32."""

    @property
    def is_close(self) -> bool:
        """True if rounding explains the differences of a float32 model."""
        return self.identical >= MIN_IDENTICAL * self.sentences and self.score_difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"greedy, {self.compute_type}: {self.identical:,} of {self.sentences:,} translations identical to those of "
            f"tmt in fp32, log-probabilities of tokens within {self.score_difference:.1e}"
        )


def compare(translator: Translator, exported: CTranslate2Translator, sources: Sequence[Sequence[int]]) -> Parity:
    """Translate source ids and score our translations with both engines. Raises `UserError` if a score is NaN."""
    n_identical, difference = 0, 0.0
    config = translator.config.for_validation()
    for start in range(0, len(sources), BATCH_SENTENCES):
        batch = [list(ids) for ids in sources[start : start + BATCH_SENTENCES]]
        ours = [best for best, *_ in translator.translate_ids(batch, config)]
        theirs = [best for best, *_ in exported.translate_ids(batch, config)]
        n_identical += sum(one.ids == other.ids for one, other in zip(ours, theirs, strict=True))
        # Scoring adds EOS, so an unfinished translation that fills all learned positions must lose its last token.
        targets = [one.ids if one.finished else one.ids[:-1] for one in ours]
        log_probs = (engine.target_log_probs(batch, targets) for engine in (translator, exported))
        for our_scores, their_scores in zip(*log_probs, strict=True):
            gaps = [abs(a - b) for a, b in zip(our_scores, their_scores, strict=True)]
            if any(map(math.isnan, gaps)):
                raise UserError(
                    "export: log-probabilities of our translations are NaN, in tmt or in CTranslate2; export another "
                    "checkpoint, or with another --quantization"
                )
            difference = max(difference, *gaps)
    return Parity(len(sources), n_identical, difference, exported.engine.compute_type)


PARITY_SENTENCES = 100
MAX_POSITIONS = 8192
SCRIPT = Path(__file__).with_name("translate_script.py")


@dataclass(frozen=True)
class LengthLimits:
    """Sequence lengths that the exported model supports."""

    positions: int
    """Size of the position table."""
    source: int
    """Maximum source tokens without control symbols. Longer sources are truncated."""

    @classmethod
    def of_translator(cls, translator: Translator) -> LengthLimits:
        """Fit the longest source with its control symbols, and the longest translation."""
        controls, config = translator.tokenizers.n_source_controls, translator.config
        needed = max(config.max_source_length + controls, config.max_target_tokens(config.max_source_length))
        positions = translator.model.config.max_sequence_length or min(MAX_POSITIONS, needed)
        return cls(positions, min(config.max_source_length, positions - controls))


def check_quantization(quantization: str) -> None:
    """Raise `UserError` if CTranslate2 is not installed or does not support this quantization."""
    try:
        from transformer_mt.tools.export.ctranslate2_library import ctranslate2
    except ImportError:
        raise UserError("export: --to ctranslate2 needs one more package: pip install ctranslate2") from None
    types = ctranslate2.specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization not in types:
        raise UserError(f"--quantization {quantization}: CTranslate2 has {', '.join(types)}")


def write_folder(translator: Translator, output: Path, quantization: str, texts: Sequence[str]) -> Parity | None:
    """Write the folder atomically and compare its translations of `texts` with those of `translator`.

    `translator` holds one model in fp32 on the CPU. Returns None if there was no sentence to compare.
    """
    from transformer_mt.tools.export import ctranslate2_model

    limits = LengthLimits.of_translator(translator)
    with files.atomic_new_folder(output) as folder:
        ctranslate2_model.save(translator, limits.positions, quantization, folder)
        for side, tokenizer in (("src", translator.tokenizers.src), ("tgt", translator.tokenizers.tgt)):
            files.write_text(folder / f"{side}_tokenizer.json", tokenizer.to_json())
        shutil.copyfile(SCRIPT, folder / "translate.py")
        parity = check_parity(translator, folder, limits, texts)
        metadata = _make_metadata(translator, quantization, limits, parity)
        files.write_text(folder / EXPORT, json.dumps(metadata, ensure_ascii=False, indent=1) + "\n")
    return parity


def check_parity(translator: Translator, folder: Path, limits: LengthLimits, texts: Sequence[str]) -> Parity | None:
    """Compare both engines on the first `PARITY_SENTENCES` texts that are not blank.

    Sources without tokens are skipped, because CTranslate2 does not score them. Returns None if no source is left.
    """
    from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Translator

    chosen = [text for text in texts if text.strip()][:PARITY_SENTENCES]
    tokenizer = translator.tokenizers.src
    first = [tokenizer.tag_id(tokenizer.tags[0])] if translator.tokenizers.needs_tag else []
    sources = [first + ids[: limits.source] for ids in tokenizer.encode(chosen) if ids]
    if not sources:
        return None
    exported = CTranslate2Translator(folder, translator.tokenizers, translator.config, limits.positions, scores=False)
    return compare(translator, exported, sources)


def format_parity(parity: Parity | None, quantization: str) -> list[str]:
    """Return the lines to print, with a warning if a float32 model differs too much."""
    if parity is None:
        return ["the two engines were not compared: there was no sentence to translate"]
    if quantization == "float32" and not parity.is_close:
        return [str(parity), "warning: the two differ more than rounding explains: do not rely on this export"]
    return [str(parity)]


def _make_metadata(
    translator: Translator, quantization: str, limits: LengthLimits, parity: Parity | None
) -> dict[str, Any]:
    """Return the content of `export.json`."""
    member = translator.members[0]
    packages = ("ctranslate2", "tokenizers", "torch")
    return {
        "run": str(member.folder.path),
        "step": member.step,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"transformer-mt": __version__, **{package: version(package) for package in packages}},
        "quantization": quantization,
        "data": {key: getattr(member.data, key) for key in ("src_lang", "tgt_lang", "max_length")},
        "source_bos": translator.tokenizers.source_bos,
        "joint": translator.tokenizers.joint,
        "tags": [*translator.tokenizers.src.tags],
        "needs_tag": translator.tokenizers.needs_tag,
        "has_symbols": translator.tokenizers.has_symbols,
        "positions": limits.positions,
        "longest_source": limits.source,
        "decoding": translator.config.model_dump(mode="json"),
        "compared": parity and asdict(parity),
    }
