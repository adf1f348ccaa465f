"""Train a small MarianMTModel with Transformers itself, and save it as OPUS-MT models are saved.

    python scripts/train_marian.py --src train.en --tgt train.de --output marian --steps 3000
    python scripts/train_marian.py --src new.en --tgt new.de --init-from marian --output tuned --steps 300 --warmup 20

It gives `tmt import` a model that translates, on a machine without a network. With --init-from it fine-tunes a model,
to compare with `tmt`. It needs `transformers` and `sentencepiece` (extra dev).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

IGNORED = -100  # label of padding


def train_pieces(lines: list[str], output: Path, vocab_size: int) -> list[str]:
    """Train a unigram SentencePiece model, save it, and return its pieces."""
    sentencepiece: Any = import_module("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="unigram",
        bos_id=-1,
        minloglevel=2,
    )
    output.write_bytes(model.getvalue())
    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def make_model(src: list[str], tgt: list[str], args: argparse.Namespace) -> tuple[Any, Any]:
    """Return a new tokenizer and model of the shape of OPUS-MT: one matrix, a segmenter for each language."""
    transformers: Any = import_module("transformers")  # typed in part only
    pieces = [
        train_pieces(lines, args.output / f"{side}.spm", args.vocab_size)
        for side, lines in zip(("source", "target"), (src, tgt), strict=True)
    ]
    entries = dict.fromkeys(["</s>", "<unk>", *pieces[0], *pieces[1], "<pad>"])
    (args.output / "vocab.json").write_text(json.dumps({entry: i for i, entry in enumerate(entries)}), encoding="utf-8")
    files = {name: str(args.output / name) for name in ("source.spm", "target.spm", "vocab.json")}
    tokenizer = transformers.MarianTokenizer(
        *files.values(), source_lang=args.src.suffix[1:], target_lang=args.tgt.suffix[1:]
    )
    pad = len(entries) - 1
    ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad, "forced_eos_token_id": None}
    heads = {"encoder_attention_heads": args.heads, "decoder_attention_heads": args.heads}
    layers = {"encoder_layers": args.layers, "decoder_layers": args.layers}
    widths = {"d_model": args.width, "encoder_ffn_dim": 2 * args.width, "decoder_ffn_dim": 2 * args.width}
    config = transformers.MarianConfig(
        vocab_size=len(entries),
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=256,
        dropout=args.dropout,
        **heads,
        **layers,
        **widths,
        **ids,
    )
    model = transformers.MarianMTModel(config)
    torch.nn.init.normal_(model.model.shared.weight, std=args.width**-0.5)
    model.generation_config = transformers.GenerationConfig(num_beams=4, max_length=256, bad_words_ids=[[pad]], **ids)
    return tokenizer, model


def iterate_batches(src: list[list[int]], tgt: list[list[int]], tokens: int, seed: int) -> Iterator[list[int]]:
    """Yield the indices of batches of similar lengths, in random order, forever."""
    generator = random.Random(seed)
    while True:
        order = sorted(range(len(src)), key=lambda i: (len(tgt[i]) + generator.random(), len(src[i])))
        batches: list[list[int]] = [[]]
        for i in order:
            if batches[-1] and (len(batches[-1]) + 1) * max(len(tgt[i]), len(src[i])) > tokens:
                batches.append([])
            batches[-1].append(i)
        generator.shuffle(batches)
        yield from batches


def pad(rows: list[list[int]], value: int) -> torch.Tensor:
    """Return the rows as one tensor. [B, L]."""
    length = max(map(len, rows))
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def main() -> None:
    """Train and save."""
    transformers: Any = import_module("transformers")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--tgt", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--init-from", type=Path, help="folder of a trained model: fine-tune it")
    for name, default in (("steps", 3000), ("tokens", 2048), ("vocab-size", 5000), ("width", 256), ("layers", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("heads", 4), ("warmup", 400), ("threads", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peak", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.output.mkdir(parents=True)
    src, tgt = (path.read_text(encoding="utf-8").splitlines() for path in (args.src, args.tgt))
    if args.init_from:
        model: Any = transformers.MarianMTModel.from_pretrained(args.init_from)
        tokenizer: Any = transformers.MarianTokenizer.from_pretrained(args.init_from)
    else:
        tokenizer, model = make_model(src, tgt, args)
    encoded: Any = tokenizer(src, text_target=tgt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.peak, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    start, batches = (
        time.perf_counter(),
        iterate_batches(encoded["input_ids"], encoded["labels"], args.tokens, args.seed),
    )
    for step in range(1, args.steps + 1):
        rate = min(step / args.warmup, (args.steps - step + 1) / max(1, args.steps - args.warmup))
        for group in optimizer.param_groups:
            group["lr"] = args.peak * rate
        batch = next(batches)
        ids = pad([encoded["input_ids"][i] for i in batch], model.config.pad_token_id)
        labels = pad([encoded["labels"][i] for i in batch], IGNORED)
        logits = model(input_ids=ids, attention_mask=(ids != model.config.pad_token_id).long(), labels=labels).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}  loss {loss.item():.3f}  {time.perf_counter() - start:.0f} s", flush=True)
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
