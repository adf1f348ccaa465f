"""Export to Argos Translate: a package that it installs from a file, and translates with without a download.

translate-SRC_TGT/ in the ZIP file FILE.argosmodel
  metadata.json               languages and versions
  model/                      the model for CTranslate2
  sentencepiece.model         the tokenizer, with its pieces
  minisbd/splitter.onnx       the sentence splitter
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.system import files
from transformer_mt.tools.export.ctranslate2_engine import CTranslate2Engine, list_vocabulary
from transformer_mt.tools.export.ctranslate2_export import save_model
from transformer_mt.tools.export.ctranslate2_support import find_length_limits
from transformer_mt.tools.export.exported_folder import check_parity, describe_parity
from transformer_mt.tools.export.sentence_splitter import make_splitter
from transformer_mt.tools.export.sentencepiece_model import check_segmentation, convert_tokenizer, make_odd_lines
from transformer_mt.tools.languages.detection import language_name

SUFFIX = ".argosmodel"
MAX_TOKENS = 1024  # of a source, as Argos Translate leaves it to CTranslate2; a translation has at most 256
MAX_LINES = 10_000
SPLITTER_VERSION = "1.11"  # first version of Argos Translate that reads a splitter of MiniSBD


def make_segmenter(
    tokenizers: TokenizerPair, decoding: DecodingConfig, model: ModelConfig, lines: Sequence[str]
) -> bytes:
    """Return `sentencepiece.model`, which segments `lines` and odd ones as this program does.

    Raises `UserError` for the first line that it does not, or if a package cannot have the tokenizers or the model.
    """
    if tokenizers.src.to_json() != tokenizers.tgt.to_json():
        raise UserError("tokenizer.joint: the run has two vocabularies, a package of Argos Translate has one: set true")
    if tokenizers.needs_tag or decoding.tag:
        raise UserError("decoding.tag: the model translates with a tag, and Argos Translate passes none")
    longest = model.max_sequence_length
    if longest is not None and longest < MAX_TOKENS:
        raise UserError(f"model.max_positions: {longest:,}: Argos Translate needs {MAX_TOKENS:,}, or positions: rotary")
    content: bytes = convert_tokenizer(tokenizers.src).SerializeToString()
    if not lines:
        raise UserError("there is no text of the run to compare the tokenizers on; pass --src F with some")
    names = list_vocabulary(tokenizers.src)
    check_segmentation(content, tokenizers.src, names, [*lines[:MAX_LINES], *make_odd_lines()])
    return content


def write_package(
    translator: Translator, segmenter: bytes, output: Path, quantization: str, texts: Sequence[str]
) -> list[str]:
    """Write the package atomically, compare its model with ours on `texts`, and return the lines to print."""
    data = translator.runs[0].data
    name = f"translate-{data.src_lang}_{data.tgt_lang}"
    n_positions, _ = find_length_limits(translator.model.config, translator.config, translator.tokenizers)
    with files.report_full_disk(output), files.temporary_folder(output) as folder:
        model = folder / "model"
        model.mkdir()
        needed = MAX_TOKENS + translator.tokenizers.n_source_controls
        save_model(translator, max(n_positions, needed), quantization, model)
        parity = check_parity(translator, CTranslate2Engine(model, translator.tokenizers, n_positions), texts)
        (folder / "sentencepiece.model").write_bytes(segmenter)
        (folder / "minisbd").mkdir()
        (folder / "minisbd" / "splitter.onnx").write_bytes(make_splitter(data.src_lang))
        metadata = {
            "package_version": "1.0",
            "argos_version": SPLITTER_VERSION,
            "from_code": data.src_lang,
            "from_name": language_name(data.src_lang),
            "to_code": data.tgt_lang,
            "to_name": language_name(data.tgt_lang),
        }
        files.write_text(folder / "metadata.json", json.dumps(metadata, ensure_ascii=False, indent=1) + "\n")
        with files.atomic_file(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, Path(name) / path.relative_to(folder))
    return describe_parity(parity, quantization)
