"""Small models of Transformers with random weights, and SentencePiece models trained on the quickstart corpus."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import BOS, EOS, PAD, Tokenizer

sentencepiece = pytest.importorskip("sentencepiece", reason="SentencePiece is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

ODD_TEXTS = [
    *(
        "",
        " ",
        "  two  spaces ",
        "a\tb",
        "Привет, мир!",
        "Приветы",
        "x Привет y",
        "日本語のテキスト",
        "naïve café",
        "ﬁne ﬂag",
    ),
    *(
        "e\u0301 vs é",
        "👩‍👩‍👧 family",
        "\u200bzero\u200dwidth",
        "<unk> </s> <pad> <s>",
        "<0x41>",
        "▁meta▁",
        "½ Ⅷ ①",
        "\ufdd0x\ufdd1",
    ),
    *(
        "\ufdd0Привет\ufdd1",
        "Straße",
        "ΑΒΓ",
        "İstanbul",
        "a\u00a0b",
        "...…",
        "''\"“”",
        "١٢٣",
        "\ufeffBOM",
        ">>fra<< text",
    ),
]


def train_sentencepiece(path: Path, lines: Sequence[str], size: int, kind: str = "unigram", **options: Any) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type=kind, minloglevel=2, **options
    )
    path.write_bytes(model.getvalue())


def list_pieces(path: Path) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(processor.get_piece_size())
    return [processor.id_to_piece(i) for i in ids if not processor.is_control(i) and not processor.is_unknown(i)]


def randomise(model: Any) -> None:
    """Give every parameter and bias a random value, so that none of them can be left out unnoticed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(1.5 * noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.2)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator) * 0.5)
            model.final_logits_bias[0, model.config.eos_token_id] += 3  # so that translations end
            model.final_logits_bias[0, model.config.pad_token_id] = -1000  # as published models exclude padding


SHAPE: dict[str, Any] = {  # no two numbers of the stacks are equal
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 64,
}


FOREIGN = ["Привет", "日本語", "▁Привет", "Strяße"]  # entries that no segmenter has; two consist of unknown characters
MARIAN: dict[str, dict[str, Any]] = {
    "shared": {"foreign": FOREIGN},
    "separate": {"shared": False, "foreign": FOREIGN, "scale_embedding": False, "activation_function": "relu"},
    "tags": {"tags": ("fra", "por_BR")},
    "untied": {
        "tie_word_embeddings": False,
        "activation_function": "gelu",
        "d_model": 36,
        "max_position_embeddings": 62,
    },
}


def make_marian(
    folder: Path,
    *,
    shared: bool = True,
    tags: Sequence[str] = (),
    foreign: Sequence[str] = (),
    n_missing: int = 3,
    is_published: bool = False,
    **options: Any,
) -> Any:
    """Write a folder of `MarianMTModel`, and return the model. Its vocabulary lacks `n_missing` pieces of each side.

    In published models, the embedding of padding is zero.
    """
    folder.mkdir(parents=True)
    pairs = load_pairs("train")[:2000]
    names: list[list[str]] = []
    for side, file in enumerate(("source.spm", "target.spm")):
        train_sentencepiece(folder / file, [pair[side] for pair in pairs], 200 + 30 * side)
        names.append(list_pieces(folder / file)[: -n_missing or None])
    rng = random.Random(1)

    def write(file: str, pieces: Sequence[str], tags: Sequence[str]) -> dict[str, int]:
        text = [*dict.fromkeys([*pieces, *foreign])]
        rng.shuffle(text)
        pad_first, pad_last = ([], ["<pad>"]) if shared else (["<pad>"], [])  # separate ones have it at the same place
        entries = ["</s>", "<unk>", *pad_first, *(f">>{tag}<<" for tag in tags), *text, *pad_last]
        ids = {entry: i for i, entry in enumerate(entries)}
        (folder / file).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        return ids

    if shared:
        src = tgt = write("vocab.json", [*names[0], *names[1]], tags)
    else:
        src, tgt = write("vocab.json", names[0], tags), write("target_vocab.json", names[1], ())
    config = {
        "vocab_size": len(src),
        "decoder_vocab_size": len(tgt),
        **SHAPE,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": tgt["<pad>"],
        "decoder_start_token_id": tgt["<pad>"],
        "eos_token_id": tgt["</s>"],
        "forced_eos_token_id": None,
        "share_encoder_decoder_embeddings": shared,
        **options,
    }
    model = transformers.MarianMTModel(transformers.MarianConfig(**config)).eval()
    randomise(model)
    model.final_logits_bias[0, tgt["</s>"]] += 5  # so that translations end
    if is_published:
        model.model.shared.weight.data[tgt["<pad>"]] = 0
    model.generation_config.update(num_beams=4, max_length=64, forced_eos_token_id=None)
    model.save_pretrained(folder)
    separate = {} if shared else {"separate_vocabs": True, "target_vocab_file": "target_vocab.json"}
    settings = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer", **separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model


M2M_LANGUAGES = {"nllb": ("deu_Latn", "eng_Latn", "fra_Latn"), "m2m": ("de", "en", "fr")}


def make_m2m100(folder: Path, kind: str, **options: Any) -> Any:
    """Write a folder of `M2M100ForConditionalGeneration`, with a tokenizer of `nllb` or `m2m`, and return the model."""
    folder.mkdir(parents=True)
    lines = [text for pair in load_pairs("train")[:2000] for text in pair]
    train_sentencepiece(folder / "sentencepiece.bpe.model", lines, 300, "bpe")
    pieces = list_pieces(folder / "sentencepiece.bpe.model")
    languages = M2M_LANGUAGES[kind]
    n_tokens = 4 + len(pieces)
    if kind == "m2m":
        entries = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
        (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(entries)}), encoding="utf-8")
        special = [f"__{code}__" for code in languages]
    else:
        special = [*languages]
    settings = {"additional_special_tokens": special, "src_lang": languages[1], "tgt_lang": languages[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = {
        "vocab_size": n_tokens + len(languages) + 5,  # further rows, as in published models
        **SHAPE,
        **options,
    }
    model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**config)).eval()
    randomise(model)
    model.generation_config.update(num_beams=4, max_length=64)
    model.save_pretrained(folder)
    bias = torch.full((config["vocab_size"],), -1000.0)  # a translation consists of text and codes
    bias[2 : n_tokens + len(languages)] = 0
    bias[2] = 5  # so that translations end
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model


def map_ids(ids: Mapping[str, int], tokenizer: Tokenizer, tag_form: str = "{}") -> list[int | None]:
    """Return the id in Transformers for each of our ids; None for PAD and BOS.

    Pieces that Transformers does not know have the id of the unknown token.
    """
    names = {PAD: None, BOS: None, EOS: "</s>", **{f"<{tag}>": tag_form.format(tag) for tag in tokenizer.tag_symbols}}
    entries = (names.get(token, token.strip("\ufdd0\ufdd1")) for token in tokenizer.tokens(range(tokenizer.vocab_size)))
    return [None if entry is None else ids.get(entry, ids["<unk>"]) for entry in entries]


def translate_with_transformers(
    model: Any, inputs: Sequence[Any], length: int, **options: Any
) -> list[tuple[list[int], float]]:
    """Return the ids of the best translation of each source and its normalised score, without batches."""
    found: list[tuple[list[int], float]] = []
    model.generation_config.max_length = length + 1
    for each in inputs:
        with torch.no_grad():
            done = model.generate(
                **each, early_stopping=True, return_dict_in_generate=True, output_scores=True, **options
            )
        found.append((done.sequences[0, 1:].tolist(), float(done.sequences_scores[0])))
    return found
