# pyright: basic
"""Translate lines greedily: python translate.py < F > G. Needs ctranslate2 and tokenizers, no other package."""

import json
import sys
from pathlib import Path

import ctranslate2
import tokenizers

here = Path(__file__).resolve().parent
about = json.loads((here / "export.json").read_text(encoding="utf-8"))
target = about["target"]
src, tgt = (tokenizers.Tokenizer.from_file(str(here / f"{side}_tokenizer.json")) for side in ("src", "tgt"))
engine = ctranslate2.Translator(str(here), device="auto")
with open(0, encoding="utf-8-sig", newline="\n") as file:
    lines = [line.removesuffix("\n").removesuffix("\r") for line in file]
coded = [found.ids[: about["source"]["longest"]] for found in src.encode_batch(lines, add_special_tokens=False)]
limits = [min(int(target["factor"] * len(ids)) + target["offset"], target["longest"]) for ids in coded]
translations = engine.translate_batch(
    [[*map(str, ids)] for ids in coded],  # the engine adds what a source begins and ends with
    beam_size=1,
    min_decoding_length=0,
    max_decoding_length=max(limits, default=1),
    max_input_length=0,
    max_batch_size=32,
)
for line, limit, found in zip(lines, limits, translations, strict=True):
    ids = [int(token) for token in found.hypotheses[0][:limit] if token.isdigit()] if line.strip() else []
    text = tgt.decode(ids, skip_special_tokens=False).replace("\n", " ")
    sys.stdout.buffer.write(f"{text}\n".encode())
