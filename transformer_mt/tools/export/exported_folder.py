"""What exported folders of several engines have in common: texts, metadata, and the comparison with our engine."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Protocol

from transformer_mt import __version__
from transformer_mt.data import characters
from transformer_mt.data.data_config import DataConfig, primary_language, split_tag
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.runs.folder import EXPORT
from transformer_mt.system import files
from transformer_mt.tools.export.ctranslate2_engine import find_length_limits

LINES_SCRIPT = Path(__file__).with_name("exported_lines.py")
BATCH_SENTENCES = 16
PARITY_SENTENCES = 100
RANDOM_LENGTHS = (1, 3, 6, 10, 15, 25)  # in tokens
MIN_IDENTICAL, MAX_DIFFERENCE = 0.99, 1e-3  # thresholds for a float32 model


def write_texts(folder: Path, translator: Translator, script: Path) -> None:
    """Write the tokenizers, and `script` as `translate.py` with the modules that it imports."""
    for side, tokenizer in (("src", translator.tokenizers.src), ("tgt", translator.tokenizers.tgt)):
        files.write_text(folder / f"{side}_tokenizer.json", tokenizer.to_json())
    shutil.copyfile(script, folder / "translate.py")
    for module in (LINES_SCRIPT, Path(characters.__file__)):
        shutil.copyfile(module, folder / module.name)


def write_metadata(
    folder: Path,
    translator: Translator,
    packages: Sequence[str],
    quantization: str,
    parity: Parity | None,
) -> None:
    """Write `export.json`. `packages` are those that made the model."""
    run, tokenizers = translator.runs[0], translator.tokenizers
    n_positions, max_source = find_length_limits(translator.model.config, translator.config, tokenizers)
    versions = {package: version(package) for package in (*packages, "tokenizers", "torch")}
    metadata = {
        "run": str(run.folder.path),
        "step": run.step,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"transformer-mt": __version__, **versions},
        "quantization": quantization,
        "data": {
            "src_lang": run.data.src_lang,
            "tgt_lang": run.data.tgt_lang,
            "lengths": run.lengths and run.lengths.model_dump(),
        },
        "languages": [_map_languages(run.data, side) for side in (0, 1)],
        "tags": [*tokenizers.tags],
        "needs_tag": tokenizers.needs_tag,
        "src_unk_id": tokenizers.src.unk_id,
        "positions": n_positions,
        "longest_source": max_source,
        "decoding": translator.config.model_dump(mode="json"),
        "compared": parity and asdict(parity),
    }
    files.write_text(folder / EXPORT, json.dumps(metadata, ensure_ascii=False, indent=1) + "\n")


def _map_languages(data: DataConfig, side: int) -> dict[str, str]:
    """Return the source or target language of each symbol of a tag, and under "" that of text without a tag."""
    codes = {"": (data.src_lang, data.tgt_lang)[side]}
    codes |= {split_tag(tag)[side] or tag.strip(":"): data.languages_of(tag)[side] for tag in data.tags}
    return {symbol: primary_language(code) for symbol, code in codes.items()}


# --- parity -----------------------------------------------------------------------------------------------------------


def describe_parity(parity: Parity | None, quantization: str) -> list[str]:
    """Return the lines to print about a comparison."""
    if parity is None:
        return ["the two engines were not compared: there was no sentence to translate"]
    if quantization == "float32" and not parity.is_close:
        return [str(parity), "warning: the two differ more than rounding explains: do not rely on this export"]
    return [str(parity)]


@dataclass(frozen=True)
class Parity:
    """The result of comparing both engines."""

    sentences: int
    identical: int
    """Number of identical translations."""
    score_difference: float
    """Largest difference between the log-probabilities of a token in our translations; NaN if one of them is NaN."""
    compute_type: str
    """Type in which the exported model computed. Our model computed in fp32."""

    @property
    def is_close(self) -> bool:
        """True if rounding explains the differences of a float32 model."""
        return self.identical >= MIN_IDENTICAL * self.sentences and self.has_close_scores

    @property
    def has_close_scores(self) -> bool:
        """True if rounding explains the differences of the log-probabilities of a float32 model."""
        return self.score_difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        return (
            f"greedy, {self.compute_type}: {self.identical:,} of {self.sentences:,} translations identical to those of "
            f"tmt in fp32, log-probabilities of tokens within {self.score_difference:.1e}"
        )


class ExportedEngine(Protocol):
    """What the comparison needs of an exported model. `TorchEngine` describes the methods."""

    @property
    def precision(self) -> str:
        """Type in which it computes."""
        ...

    def search(
        self, sources: list[list[int]], config: DecodingConfig, *, tgt_tags: Sequence[int] | None, scores: bool
    ) -> list[list[Hypothesis]]:
        """Translate source ids."""
        ...

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of given translations, including EOS."""
        ...


def check_parity(translator: Translator, exported: ExportedEngine, texts: Sequence[str]) -> Parity | None:
    """Compare both engines on the first `PARITY_SENTENCES` texts that are not blank.

    Sources without tokens are skipped, because CTranslate2 does not score them. Returns None if no source is left.
    Raises `UserError` if a score is NaN.
    """
    _, max_source = find_length_limits(translator.model.config, translator.config, translator.tokenizers)
    chosen = [text for text in texts if text.strip()][:PARITY_SENTENCES]
    tokenizer = translator.tokenizers.src
    src_tag, tgt_tag = _first_tag(translator)
    sources = [src_tag + ids[:max_source] for ids in tokenizer.encode(chosen) if ids]
    if not sources:
        return None
    parity = compare(translator, exported, sources, tgt_tag)
    if math.isnan(parity.score_difference):
        raise UserError(
            "export: log-probabilities of our translations are NaN, in tmt or in the exported model; export another "
            "checkpoint, or with another --quantization"
        )
    return parity


def check_parity_on_random_ids(translator: Translator, exported: ExportedEngine) -> Parity:
    """Compare both engines on sources of random tokens, for a run whose texts may be missing."""
    random, n_tokens = Random(1), translator.tokenizers.src.pad_id
    lengths = (min(length, translator.max_source_tokens) for length in RANDOM_LENGTHS)
    src_tag, tgt_tag = _first_tag(translator)
    sources = [[*src_tag, *(random.randrange(n_tokens) for _ in range(n))] for n in lengths]
    return compare(translator, exported, sources, tgt_tag)


def _first_tag(translator: Translator) -> tuple[list[int], list[int]]:
    """Return the ids of the first tag for source and target, if the model needs one."""
    tokenizers = translator.tokenizers
    return tokenizers.tag_ids(tokenizers.tags[0] if tokenizers.needs_tag else None)


def compare(
    translator: Translator, exported: ExportedEngine, sources: Sequence[Sequence[int]], tgt_tag: list[int]
) -> Parity:
    """Translate source ids and score our translations, which start with `tgt_tag`, with both engines."""
    n_identical, gaps = 0, [0.0]
    config = translator.config.for_validation()
    for start in range(0, len(sources), BATCH_SENTENCES):
        batch = [list(ids) for ids in sources[start : start + BATCH_SENTENCES]]
        tgt_tags = tgt_tag * len(batch) or None
        ours = [best for best, *_ in translator.engine.search(batch, config, tgt_tags=tgt_tags)]
        theirs = [best for best, *_ in exported.search(batch, config, tgt_tags=tgt_tags, scores=False)]
        n_identical += sum(one.ids == other.ids for one, other in zip(ours, theirs, strict=True))
        # Scoring adds EOS, so an unfinished translation that fills all learned positions must lose its last token.
        targets = [one.ids if one.finished else one.ids[:-1] for one in ours]
        log_probs = (engine.score(batch, targets) for engine in (translator.engine, exported))
        for our_scores, their_scores in zip(*log_probs, strict=True):
            gaps += [abs(a - b) for a, b in zip(our_scores, their_scores, strict=True)]
    difference = math.nan if any(map(math.isnan, gaps)) else max(gaps)
    return Parity(len(sources), n_identical, difference, exported.precision)
