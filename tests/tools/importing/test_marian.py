"""An imported MarianMTModel computes what it computes in Transformers: pieces, logits and beams."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import Tmt, assert_succeeded
from importing_helpers import ODD_TEXTS, make_marian, map_ids, transformers, translate_with_transformers

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows.translation import LoadOptions, load_translator

FOREIGN = ["Привет", "日本語", "▁Привет", "Strяße"]  # entries that no segmenter has; two consist of unknown characters
VARIANTS: dict[str, dict[str, Any]] = {
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


class Imported(NamedTuple):
    folder: Path
    model: Any
    tokenizer: Any
    translator: Translator
    tag: str | None


@pytest.fixture(scope="module", params=VARIANTS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Imported:
    folder = tmp_path_factory.mktemp("marian")
    options = VARIANTS[request.param]
    model = make_marian(folder / "source", **options)
    assert_succeeded(tmt("import", folder / "source", "--output", folder / "run"))
    translator = load_translator(
        folder / "run",
        LoadOptions(device="cpu", precision="fp32", split="never"),
        engine="torch",
        guard=False,
        restore_case=False,
        max_length_factor=0,
        max_length_offset=60,
    )
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder / "source")
    tag = options.get("tags", (None,))[0]
    return Imported(folder, model, tokenizer, translator, tag)


def test_texts_have_the_pieces_of_the_marian_tokenizer(imported: Imported) -> None:
    texts = [*(src for src, _ in load_pairs("test")), *ODD_TEXTS]
    ours, theirs = (
        map_ids(imported.folder / "source", imported.translator.tokenizers.src, "vocab.json"),
        imported.tokenizer,
    )
    for text, ids in zip(texts, imported.translator.tokenizers.src.encode(texts), strict=True):
        expected = theirs.convert_tokens_to_ids(theirs.spm_source.encode(text, out_type=str))
        assert [ours[i] for i in ids] == expected, text


def test_logits_are_those_of_transformers(imported: Imported) -> None:
    translator, model = imported.translator, imported.model
    file = "vocab.json" if translator.tokenizers.joint else "target_vocab.json"
    rows = map_ids(imported.folder / "source", translator.tokenizers.tgt, file)
    kept = [i for i in range(len(rows)) if rows[i] is not None and not is_copy(rows, i)]
    assert len({rows[i] for i in kept}) == model.lm_head.out_features - 1  # all but padding
    generator = torch.Generator().manual_seed(1)
    for text, _ in load_pairs("test")[:20]:
        tgt = [kept[int(i)] for i in torch.randint(len(kept), (9,), generator=generator)]
        tgt = [i for i in tgt if i < translator.tokenizers.tgt.pad_id]
        sources = translator.encode([text], [1], [imported.tag])
        batch = collate_pairs(sources, [tgt], translator.tokenizers)
        with torch.no_grad():
            ours = translator.model.logits(translator.model(batch.src, batch.tgt_in))[0]
            prompt = f">>{imported.tag}<<{text}" if imported.tag else text
            start = model.config.decoder_start_token_id
            decoder_ids = torch.tensor([[start, *(rows[i] for i in tgt)]])
            theirs = model(**imported.tokenizer(prompt, return_tensors="pt"), decoder_input_ids=decoder_ids).logits[0]
        theirs = theirs[:, [rows[i] for i in kept]]
        torch.testing.assert_close(ours[:, kept], theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def is_copy(rows: Sequence[int | None], i: int) -> bool:
    """Return whether an id is a further one of its row: a piece that Marian does not know."""
    return rows[i] in rows[:i]


@pytest.mark.slow
def test_beams_are_those_of_transformers(imported: Imported) -> None:
    texts = [src for src, _ in load_pairs("test")[:40]]
    expected = translate_with_transformers(imported.model, imported.tokenizer, texts, imported.tag, 60)
    together = [n_best[0] for n_best in imported.translator.n_best(texts, tags=[imported.tag] * len(texts))]
    for text, ours, (theirs, score) in zip(texts, together, expected, strict=True):
        assert ours.text == theirs, text
        assert ours.score / len(ours.token_scores) == pytest.approx(score, rel=1e-4)
    alone = [imported.translator.n_best([text], tags=[imported.tag])[0][0].text for text in texts[:10]]
    assert alone == [each.text for each in together[:10]]


def test_settings_of_the_source_are_those_of_the_run(imported: Imported) -> None:
    record = json.loads((imported.folder / "run" / "run.json").read_text("utf-8"))
    assert record["provenance"]["imported"]["format"] == "MarianMTModel"
    assert (imported.translator.config.beam, imported.translator.config.no_repeat_ngram) == (4, 2)
    assert imported.translator.tokenizers.needs_tag == (imported.tag is not None)


@pytest.mark.slow
def test_other_commands_read_the_run(
    imported: Imported, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tag = imported.folder / "run", ["--tag", imported.tag] if imported.tag else []
    monkeypatch.chdir(tmp_path)
    for side, name in enumerate(("en", "de")):
        Path(f"pairs.{name}").write_text("".join(f"{pair[side]}\n" for pair in load_pairs("test")[:20]), "utf-8")
    options = ["--device", "cpu", "--max-length", "30"]
    assert len(assert_succeeded(tmt("translate", run, "--input", "pairs.en", *tag, *options)).splitlines()) == 20
    assert_succeeded(tmt("evaluate", run, "--src", "pairs.en", "--ref", "pairs.de", *tag, *options))
    assert_succeeded(tmt("explain", run, "The man sees a dog.", *tag))
    engine = assert_succeeded(tmt("export", run, "--to", "ctranslate2", "--output", "engine", "--src", "pairs.en"))
    assert "20 of 20 translations identical" in engine
    done = tmt("train", "--config", run / "config.yaml", f"runs_dir={tmp_path}")
    assert done.returncode == 2
    assert "train.init_from" in done.stderr
    both = f"{{src: pairs.en, tgt: pairs.de, tag: {imported.tag or 'null'}}}"
    Path("tuned.yaml").write_text(
        f"base: {run}/config.yaml\ndata: {{train: {both}, validation: {both}, max_length: 40}}\ndevice: cpu\n"
        f"train: {{init_from: {run}, max_steps: 2}}\nvalidation: {{every: 2, probes: 0}}\nprecision: fp32\n",
        "utf-8",
    )
    assert_succeeded(tmt("train", "--config", "tuned.yaml"))
    assert_succeeded(tmt("translate", "runs/tuned", "--input", "pairs.en", *tag, *options))
