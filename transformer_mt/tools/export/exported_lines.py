# pyright: basic
"""Lines of text for `translate.py` of an exported folder: from standard input to ids, and back to standard output.

Needs only tokenizers, and `characters.py`, which is copied beside it.
"""

import json
import signal
import sys

import tokenizers
from characters import (  # pyright: ignore[reportMissingImports]
    count_token_cost,
    find_case,
    has_letters,
    leave_out_invalid_bytes,
    replace_unusual_characters,
    to_sentence_case,
)

BATCH_LINES = 32  # that are translated together


def translate_lines(folder, translate):
    """Translate the lines of standard input. The only argument of the command is a tag.

    `translate` maps the ids of sources, the limit of their translations in tokens, the names of the symbols of the tag
    before source and target, and the section `decoding` of the run to the ids of the translations.
    """
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exit silently when the reader closes the pipe
    metadata = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    decoding = metadata["decoding"]
    tag = sys.argv[1] if len(sys.argv) > 1 else decoding["tag"] or ""
    if metadata["needs_tag"] and not tag:
        _warn(f"the model needs a tag; pass one such as {metadata['tags'][0]}")
        sys.exit(2)
    symbols, known = tag.partition(":")[::2], [each.partition(":")[::2] for each in metadata["tags"]]
    if tag and not all(symbol in {each[side] for each in known} for side, symbol in enumerate(symbols)):
        _warn(f"unknown tag {tag}; the model " + (f"knows: {', '.join(metadata['tags'])}" if known else "has no tags"))
        sys.exit(2)
    src_lang, tgt_lang = (
        codes.get(symbol or tag.strip(":"), codes[""])
        for codes, symbol in zip(metadata["languages"], symbols, strict=True)
    )
    src_tag, tgt_tag = ([f"<{symbol}>"] if symbol else [] for symbol in symbols)
    src, tgt = (tokenizers.Tokenizer.from_file(str(folder / f"{side}_tokenizer.json")) for side in ("src", "tgt"))
    lines = _read_lines()
    translations: list[list[int]] = [[] for _ in lines]
    copied: dict[int, str] = {}  # lines without letters
    by_limit: dict[int, dict[int, list[int]]] = {}  # an engine has one limit per call
    restore_case = {}  # functions that restore the case of lines that are translated in sentence case

    def encode(text):
        return src.encode(text, add_special_tokens=False).ids

    def cost(text):
        return count_token_cost(encode(text), metadata["src_unk_id"])

    texts = [replace_unusual_characters(line, cost) for line in lines]
    for i, (line, text) in enumerate(zip(lines, texts, strict=True)):
        ids, longest = encode(text), metadata["longest_source"]
        restore = find_case(text)
        if decoding["restore_case"] and restore:
            changed = to_sentence_case(text, src_lang)
            if cost(changed) < cost(text):
                ids = encode(changed)
                restore_case[i] = restore
        if len(ids) > longest:
            _warn(f"line {i + 1} has {len(ids)} tokens and is truncated to {longest}")
            ids = ids[:longest]
        limit = int(decoding["max_length_factor"] * len(src_tag + ids)) + decoding["max_length_offset"]
        limit = min(max(limit, decoding["min_length"] + 1) + len(tgt_tag), metadata["positions"])
        if ids and line.strip() and not has_letters(line):
            copied[i] = line
        elif ids and line.strip():
            by_limit.setdefault(limit, {})[i] = ids
    for limit, sources in by_limit.items():
        indices = [*sources]
        for start in range(0, len(indices), BATCH_LINES):
            batch = indices[start : start + BATCH_LINES]
            found = translate([sources[i] for i in batch], limit, src_tag, tgt_tag, decoding)
            for i, ids in zip(batch, found, strict=True):
                translations[i] = ids
    for i, text in enumerate(tgt.decode_batch(translations, skip_special_tokens=False)):
        text = leave_out_invalid_bytes(text.rstrip())
        text = restore_case[i](text, tgt_lang) if i in restore_case else text
        sys.stdout.buffer.write(((copied.get(i) or text).replace("\n", " ") + "\n").encode())


def _read_lines():
    """Return the lines of standard input."""
    with open(0, "rb") as file:
        raw_lines = file.readlines()
    lines: list[str] = []
    for number, line in enumerate(raw_lines, start=1):
        try:
            lines.append(line.decode("utf-8" if lines else "utf-8-sig").removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError:
            _warn(f"line {number} is not UTF-8 text; convert it, e.g. with iconv")
            sys.exit(2)
    return lines


def _warn(message):
    sys.stderr.write(f"translate.py: {message}\n")
