# pyright: basic
"""Translate lines with the settings of the run: python translate.py [TAG] < F > G.

Needs only ctranslate2 and tokenizers.
"""

import json
import signal
import sys
from pathlib import Path

import ctranslate2
import tokenizers
from letter_case import find_case, to_sentence_case  # pyright: ignore[reportMissingImports]

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exit silently when the reader closes the pipe
here = Path(__file__).resolve().parent
metadata = json.loads((here / "export.json").read_text(encoding="utf-8"))
decoding = metadata["decoding"]
tag = sys.argv[1] if len(sys.argv) > 1 else decoding["tag"] or ""
if metadata["needs_tag"] and not tag:
    sys.stderr.write(f"translate.py: the model needs a tag; pass one such as {metadata['tags'][0]}\n")
    sys.exit(2)
src_tag, tgt_tag = ([f"<{symbol}>"] if symbol else [] for symbol in tag.partition(":")[::2])
src, tgt = (tokenizers.Tokenizer.from_file(str(here / f"{side}_tokenizer.json")) for side in ("src", "tgt"))
vocabularies = []
for side in ("source", "target"):
    path = here / f"{side}_vocabulary.json"
    path = path if path.exists() else here / "shared_vocabulary.json"
    vocabularies.append(json.loads(path.read_text(encoding="utf-8")))
src_tokens, tgt_tokens = vocabularies
tgt_ids = {token: i for i, token in enumerate(tgt_tokens[: tgt_tokens.index("<pad>")])}  # control symbols are last
engine = ctranslate2.Translator(str(here), device="auto")
with open(0, "rb") as file:
    raw_lines = file.readlines()
lines: list[str] = []
for number, line in enumerate(raw_lines, start=1):
    try:
        lines.append(line.decode("utf-8" if lines else "utf-8-sig").removesuffix("\n").removesuffix("\r"))
    except UnicodeDecodeError:
        sys.stderr.write(f"translate.py: line {number} is not UTF-8 text; convert it, e.g. with iconv\n")
        sys.exit(2)
translations: list[list[int]] = [[] for _ in lines]
copied: dict[int, str] = {}  # lines without letters
by_limit: dict[int, dict[int, list[str]]] = {}  # CTranslate2 has one length limit per call
restore_case = {}  # functions that restore the case of lines that are translated in sentence case
for i, (line, encoding) in enumerate(zip(lines, src.encode_batch(lines, add_special_tokens=False), strict=True)):
    ids, longest = encoding.ids, metadata["longest_source"]
    restore = find_case(line)
    if decoding["restore_case"] and restore:
        changed = src.encode(to_sentence_case(line, metadata["data"]["src_lang"]), add_special_tokens=False).ids
        if len(changed) < len(ids):
            ids = changed
            restore_case[i] = restore
    if len(ids) > longest:
        sys.stderr.write(f"translate.py: line {i + 1} has {len(ids)} tokens and is truncated to {longest}\n")
        ids = ids[:longest]
    limit = int(decoding["max_length_factor"] * len(src_tag + ids)) + decoding["max_length_offset"] + len(tgt_tag)
    if ids and line.strip() and not any(map(str.isalpha, line)):
        copied[i] = line
    elif ids and line.strip():  # CTranslate2 adds the control symbols
        by_limit.setdefault(min(limit, metadata["positions"]), {})[i] = [*src_tag, *(src_tokens[each] for each in ids)]
for limit, sources in by_limit.items():
    results = engine.translate_batch(
        list(sources.values()),
        [tgt_tag] * len(sources) if tgt_tag else None,
        beam_size=decoding["beam"],
        num_hypotheses=decoding["beam"],
        length_penalty=decoding["length_penalty_exponent"] or 1e-9,  # with 0, the search stops too early
        no_repeat_ngram_size=decoding["no_repeat_ngram"],
        min_decoding_length=min(decoding["min_length"] + len(tgt_tag), limit),
        max_decoding_length=limit,
        max_input_length=0,
        max_batch_size=32,
        return_end_token=True,
    )
    for i, result in zip(sources, results, strict=True):
        finished = [tokens for tokens in result.hypotheses if tokens[-1] == "</s>"]
        translations[i] = [tgt_ids[token] for token in (finished or result.hypotheses)[0] if token in tgt_ids]
for i, text in enumerate(tgt.decode_batch(translations, skip_special_tokens=False)):
    text = restore_case[i](text, metadata["data"]["tgt_lang"]) if i in restore_case else text
    sys.stdout.buffer.write((copied.get(i, text).replace("\n", " ") + "\n").encode())
