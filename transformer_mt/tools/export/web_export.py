"""A web page in an exported ONNX folder: the model translates inside the browser, and no text leaves the machine.

DIR/
  index.html  translate.js   the page and its script
  lib/                       ONNX Runtime and the tokenizers library in JavaScript, from npm

The page searches greedily. Tokenizers that the JavaScript library reads in another way are refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_mt.data.data_config import split_tag
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair, find_kind
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import UserError
from transformer_mt.system import files
from transformer_mt.tools.languages.detection import language_name
from transformer_mt.tools.pages.page_rendering import render_page

INSTALL = "npm install onnxruntime-web@1.30.0 @huggingface/tokenizers@0.2.0"
LIBRARIES = {
    "ort.wasm.bundle.min.mjs": "onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
    "ort-wasm-simd-threaded.wasm": "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
    "tokenizers.min.mjs": "@huggingface/tokenizers/dist/tokenizers.min.mjs",
    "tokenizers.LICENSE": "@huggingface/tokenizers/LICENSE",
}
"""Files of lib/, and where npm writes them."""
SCRIPT = Path(__file__).with_name("web_script.js")
SUPPORTED_PARTS = {
    "normalizer": {"Sequence", "Prepend", "Replace", "Lowercase", "NFC", "NFD", "NFKC", "NFKD"},
    "pre_tokenizer": {"Sequence", "Split", "ByteLevel"},
    "model": {"BPE", "WordPiece"},  # WordLevel is missing, and Unigram has no bytes for unknown characters
    "decoder": {"Sequence", "ByteFallback", "Fuse", "Strip", "Replace", "ByteLevel"},
}
"""Types of the parts of a tokenizer for which the JavaScript library gives the same ids and texts."""


def check_tokenizers(tokenizers: TokenizerPair) -> None:
    """Raise `UserError` with the name of a part of a tokenizer that the JavaScript library does not read as we do."""
    for tokenizer in (tokenizers.src, tokenizers.tgt):
        content = json.loads(tokenizer.to_json())
        for part, supported in SUPPORTED_PARTS.items():
            if others := [name for name in _list_types(content[part]) if name not in supported]:
                kind = find_kind(tokenizer.backend)
                raise UserError(
                    f"export --web: the tokenizer (kind: {kind}) has the {part} {others[0]}, which the JavaScript "
                    "library does not read as tmt does; leave out --web, or train with kind: bpe and no tokenizer.file"
                )


def _list_types(part: dict[str, Any] | None) -> Iterator[str]:
    """Yield the types of a part of a tokenizer and of the parts in it."""
    if part is not None:
        yield part["type"]
        for key in ("normalizers", "pretokenizers", "decoders"):
            for inner in part.get(key, ()):
                yield from _list_types(inner)


def find_libraries(modules: Path) -> dict[str, Path]:
    """Return the files of lib/ in a folder `node_modules`. Raises `UserError` if one is missing."""
    paths = {name: modules / path for name, path in LIBRARIES.items()}
    if missing := [path for path in paths.values() if not path.is_file()]:
        raise UserError(
            f"export --web: {missing[0]}: no such file; run `{INSTALL}`, and pass its folder as --web node_modules"
        )
    return paths


def write_page(folder: Path, translator: Translator, libraries: Mapping[str, Path]) -> None:
    """Add the page, its script and the libraries to an exported folder."""
    run, tokenizers = translator.runs[0], translator.tokenizers
    known = dict.fromkeys([*tokenizers.tags, *filter(None, [translator.config.tag])])
    tags = {tag: " to ".join(map(language_name, filter(None, split_tag(tag)))) for tag in known}
    page = render_page(
        "translation.html",
        src_lang=language_name(run.data.src_lang),
        tgt_lang=language_name(run.data.tgt_lang),
        tags=tags if tokenizers.needs_tag else {"": "no tag", **tags} if tags else {},
        default_tag=translator.config.tag or "",
    )
    files.write_text(folder / "index.html", page)
    shutil.copyfile(SCRIPT, folder / "translate.js")
    (folder / "lib").mkdir()
    for name, path in libraries.items():
        shutil.copyfile(path, folder / "lib" / name)
