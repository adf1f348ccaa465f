# pyright: basic
"""Translate lines with the settings of the run: python translate.py [TAG] < F > G.

Needs only ctranslate2 and tokenizers.
"""

import json
from pathlib import Path

import ctranslate2
from exported_lines import translate_lines  # pyright: ignore[reportMissingImports]

here = Path(__file__).resolve().parent
vocabularies = []
for side in ("source", "target"):
    path = here / f"{side}_vocabulary.json"
    path = path if path.exists() else here / "shared_vocabulary.json"
    vocabularies.append(json.loads(path.read_text(encoding="utf-8")))
src_tokens, tgt_tokens = vocabularies
tgt_ids = {token: i for i, token in enumerate(tgt_tokens[: tgt_tokens.index("<pad>")])}  # control symbols are last
engine = ctranslate2.Translator(str(here), device="auto")


def translate(sources, limit, src_tag, tgt_tag, decoding):
    """Translate lists of ids. CTranslate2 adds the control symbols."""
    results = engine.translate_batch(
        [[*src_tag, *(src_tokens[i] for i in ids)] for ids in sources],
        [tgt_tag] * len(sources) if tgt_tag else None,
        beam_size=decoding["beam"],
        num_hypotheses=decoding["beam"],
        length_penalty=decoding["length_penalty_exponent"] or 1e-9,  # with 0, the search stops too early
        min_decoding_length=min(decoding["min_length"] + len(tgt_tag), limit),
        max_decoding_length=limit,
        max_input_length=0,
        return_end_token=True,
    )
    for result in results:
        finished = [tokens for tokens in result.hypotheses if tokens[-1] == "</s>"]
        yield [tgt_ids[token] for token in (finished or result.hypotheses)[0] if token in tgt_ids]


translate_lines(here, translate)
