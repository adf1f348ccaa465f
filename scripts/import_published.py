"""Import published models, and compare them with Transformers. Needs a network, transformers and sentencepiece.

It downloads about 4 GB. For each model it prints how many translations of some sentences are those of `generate`, and
the largest difference of their scores:

    python scripts/import_published.py FOLDER
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from transformer_mt.flows.import_model import import_model
from transformer_mt.flows.translation import LoadOptions, load_translator

MODELS = {
    "Helsinki-NLP/opus-mt-en-de": (None, None),
    "Helsinki-NLP/opus-mt-fr-en": (None, None),
    "Helsinki-NLP/opus-mt-en-ROMANCE": (None, "fr"),
    "facebook/nllb-200-distilled-600M": ("eng_Latn", "deu_Latn"),
}
"""Names on the hub, and the languages to pass: the target language of a model with tags is that of the tag."""
SENTENCES = {
    "en": ["The weather is nice today.", "She has lived in Paris for ten years.", "How much does this bicycle cost?"],
    "fr": ["Il fait beau aujourd'hui.", "Elle habite à Paris depuis dix ans.", "Combien coûte ce vélo ?"],
}
MAX_TOKENS = 100


def main(folder: Path) -> None:
    for name, (src_lang, tgt_lang) in MODELS.items():
        run = folder / name.rpartition("/")[2]
        if not run.exists():
            print(*import_model(name, run, src_lang, tgt_lang), sep="\n")
        options = LoadOptions(device="cpu", precision="fp32", split="never")
        decoding = {"engine": "torch", "guard": False, "restore_case": False, "max_length_factor": 0}
        translator = load_translator(run, options, **decoding, max_length_offset=MAX_TOKENS, beam=4)
        tag = next((tag for tag in ("fr", "eng_Latn:deu_Latn") if tag in translator.tokenizers.tags), None)
        texts = SENTENCES["fr" if "-fr-" in name else "en"]
        ours = [best for best, *_ in translator.n_best(texts, tags=[tag] * len(texts))]
        theirs = [generate(name, text, tag) for text in texts]
        same = sum(one.text == text for one, (text, _) in zip(ours, theirs, strict=True))
        n_first = translator.tokenizers.n_target_tags
        scores = [one.score / (n_first + len(one.token_scores)) for one in ours]
        gap = max(abs(one - other) for one, (_, other) in zip(scores, theirs, strict=True))
        print(f"{name}: {same} of {len(texts)} translations are those of Transformers, scores within {gap:.1e}")


def generate(name: str, text: str, tag: str | None) -> tuple[str, float]:
    """Translate with Transformers. Return the text and its score."""
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.float32)
    src, _, tgt = (tag or "").partition(":")
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **({"src_lang": src} if tgt else {}))
    inputs = tokenizer(f">>{src}<< {text}" if tag and not tgt else text, return_tensors="pt")
    forced = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(tgt)} if tgt else {}
    done = model.generate(
        **inputs,
        **forced,
        num_beams=4,
        early_stopping=True,
        max_new_tokens=MAX_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return tokenizer.decode(done.sequences[0], skip_special_tokens=True), float(done.sequences_scores[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
