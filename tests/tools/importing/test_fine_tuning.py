"""Training of an imported model beside Transformers and PyTorch's own optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_succeeded
from importing_helpers import make_marian, map_ids

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair

RATE = 1e-3


@pytest.mark.slow
def test_ten_steps_have_the_losses_of_transformers(tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rates: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    model = make_marian(Path("source"), n_missing=0, **rates).train()
    assert_succeeded(tmt("import", "source", "--output", "imported"))
    pairs = load_pairs("train")[:8]
    for side, name in enumerate(("en", "de")):
        Path(f"pairs.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    Path("tuned.yaml").write_text(
        f"""base: imported/config.yaml
data: {{train: {{src: pairs.en, tgt: pairs.de}}, validation: {{src: pairs.en, tgt: pairs.de}}, max_length: 60}}
model: {{freeze: [positions, output_bias]}}
loss: {{label_smoothing: 0}}
optimizer: {{kind: adam, betas: [0.9, 0.98], eps: 1.0e-5, clip_norm: null}}
schedule: {{kind: constant, warmup_steps: 1, peak: {RATE}}}
train: {{init_from: imported, max_steps: 10, log_every: 1}}
validation: {{every: 10, probes: 0}}
device: cpu
precision: fp32
""",
        "utf-8",
    )
    assert_succeeded(tmt("train", "--config", "tuned.yaml"))
    logged = [json.loads(line) for line in Path("runs/tuned/metrics.jsonl").read_text("utf-8").splitlines()]
    ours = [entry["train/nll"] for entry in logged if "train/nll" in entry]

    tokenizers = TokenizerPair.load(Path("imported/tokenizer.json"))
    ids = json.loads(Path("source/vocab.json").read_text("utf-8"))
    rows = [map_ids(ids, tokenizer, ">>{}<<") for tokenizer in (tokenizers.src, tokenizers.tgt)]
    encoded = tokenizers.src.encode([src for src, _ in pairs]), tokenizers.tgt.encode([tgt for _, tgt in pairs])
    eos, pad = ids["</s>"], ids["<pad>"]
    src, tgt = (
        torch.nn.utils.rnn.pad_sequence(
            [torch.tensor([*(row[i] for i in sentence), eos]) for sentence in side], batch_first=True, padding_value=pad
        )
        for row, side in zip(rows, encoded, strict=True)
    )
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_tokens.padding_idx = None  # the decoder starts with this row, and here it is trained
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], RATE, (0.9, 0.98), 1e-5)
    theirs: list[float] = []
    for _ in range(10):
        optimizer.zero_grad()
        labels = tgt.masked_fill(tgt == pad, -100)
        loss = model(input_ids=src, attention_mask=(src != pad).long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    assert theirs[-1] < theirs[0] - 0.5
    assert ours == pytest.approx(theirs, rel=1e-4)
