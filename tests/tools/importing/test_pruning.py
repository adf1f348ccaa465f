"""Pruning keeps the pieces that a text needs: the same segmentation of the text, and the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Tmt, assert_succeeded, assert_user_error
from importing_helpers import make_m2m100, make_marian

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows.translation import LoadOptions, load_translator

SOURCES: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "two segmenters": (make_marian, {"tags": ("fra", "por")}, "por"),
    "two vocabularies": (make_marian, {"shared": False}, None),
    "bpe": (make_m2m100, {"kind": "nllb"}, "eng_Latn:deu_Latn"),
}


def load(run: Path) -> Translator:
    return load_translator(run, LoadOptions(device="cpu", precision="fp32"), engine="torch")


@pytest.mark.parametrize("name", SOURCES)
def test_pruned_model_has_the_same_pieces_and_logits(name: str, tmp_path: Path, tmt: Tmt) -> None:
    make, options, tag = SOURCES[name]
    make(tmp_path / "source", **options)
    pairs = load_pairs("test")[:12]
    for side, file in enumerate(("text.en", "text.de")):
        (tmp_path / file).write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    corpus = ["--corpus", tmp_path / "text.en", "--corpus", tmp_path / "text.de"]
    kept = ["--languages", tag.replace(":", ",")] if tag else []
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "full"))
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "small", *corpus, *kept))
    full, small = load(tmp_path / "full"), load(tmp_path / "small")
    assert small.tokenizers.tgt.vocab_size < full.tokenizers.tgt.vocab_size
    entries, fewer = (each.tokenizers.tgt.tokens(range(each.tokenizers.tgt.vocab_size)) for each in (full, small))
    columns = [entries.index(entry) for entry in fewer]
    assert {*"".join(tgt for _, tgt in pairs)} & {*entries} <= {*fewer}
    batches = []
    for each in (full, small):
        sources, targets = each.encode([src for src, _ in pairs], range(12), 12 * [tag]), each.tokenizers.tgt
        first = each.tokenizers.tag_ids(tag)[1]
        encoded = [first + ids for ids in targets.encode([tgt for _, tgt in pairs])]
        batches.append(collate_pairs(sources, encoded, each.tokenizers))
    assert [columns[i] for i in batches[1].tgt_in.flatten()] == batches[0].tgt_in.flatten().tolist()
    with torch.no_grad():
        all_logits, logits = (
            each.model.logits(each.model(batch.src, batch.tgt_in))
            for each, batch in zip((full, small), batches, strict=True)
        )
    torch.testing.assert_close(logits, all_logits[..., columns], rtol=1e-5, atol=1e-5)


def test_languages_that_the_model_lacks_are_refused(tmp_path: Path, tmt: Tmt) -> None:
    make_m2m100(tmp_path / "source", "m2m")
    for option in ("--languages", "--src-lang", "--tgt-lang"):
        done = tmt("import", tmp_path / "source", "--output", tmp_path / "run", option, "xx")
        assert_user_error(done, "xx", "de, en, fr")
        assert not (tmp_path / "run").exists()
