"""An imported model computes what it computes in Transformers: pieces, logits and beams."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import Tmt, assert_succeeded, assert_user_error, load_plain
from importing_helpers import (
    M2M_LANGUAGES,
    MARIAN,
    ODD_TEXTS,
    make_m2m100,
    make_marian,
    map_ids,
    sentencepiece,
    train_sentencepiece,
    transformers,
    translate_with_transformers,
)

from transformer_mt.data.batches import collate_pairs
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerPair
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.decoding.translator import Translator


class Imported(NamedTuple):
    folder: Path
    model: Any
    encode: Callable[[str], Any]
    """Returns the inputs of the model in Transformers."""
    pieces: Callable[[str], list[int]]
    """Returns the ids in Transformers without control symbols. Control symbols in a text are text."""
    src_rows: Sequence[int | None]
    """Id in Transformers for each of our ids."""
    tgt_rows: Sequence[int | None]
    translator: Translator
    tag: str | None
    first: Sequence[int]
    """Ids in Transformers before a translation."""


def load(run: Path) -> Translator:
    return load_plain(
        run, device="cpu", precision="fp32", restore_case=False, max_length_factor=0, max_length_offset=60
    )


def import_marian(folder: Path, name: str, tmt: Tmt) -> Imported:
    options = MARIAN[name]
    model = make_marian(folder / "source", **options)
    assert_succeeded(tmt("import", folder / "source", "--output", folder / "run"))
    translator = load(folder / "run")
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder / "source")
    tag = options.get("tags", (None,))[0]
    is_separate = not options.get("shared", True)
    src_ids, tgt_ids = (
        json.loads((folder / "source" / file).read_text("utf-8"))
        for file in ("vocab.json", "target_vocab.json" if is_separate else "vocab.json")
    )

    def find_pieces(text: str) -> list[int]:
        return tokenizer.convert_tokens_to_ids(tokenizer.spm_source.encode(text, out_type=str))

    return Imported(
        folder,
        model,
        lambda text: tokenizer(f">>{tag}<<{text}" if tag else text, return_tensors="pt"),
        find_pieces,
        map_ids(src_ids, translator.tokenizers.src, ">>{}<<"),
        map_ids(tgt_ids, translator.tokenizers.tgt, ">>{}<<"),
        translator,
        tag,
        [],
    )


def import_m2m100(folder: Path, name: str, tmt: Tmt) -> Imported:
    kind, source = name.partition("-")[0], folder / "source"
    model, (tgt, src, _) = make_m2m100(source, kind), M2M_LANGUAGES[kind]
    segmenter = sentencepiece.SentencePieceProcessor(model_file=str(source / "sentencepiece.bpe.model"))
    form = "__{}__" if kind == "m2m" else "{}"
    n_tokens = model.config.vocab_size - 5 - 3
    languages = {form.format(code): n_tokens + i for i, code in enumerate(M2M_LANGUAGES[kind])}
    if kind == "m2m":
        tokenizer = transformers.M2M100Tokenizer.from_pretrained(source)
        ids = tokenizer.get_vocab()

        def find_pieces(text: str) -> list[int]:
            return tokenizer.convert_tokens_to_ids(segmenter.encode(text, out_type=str))
    elif name == "nllb-spm":
        ids = {"</s>": 2, "<unk>": 3, **{segmenter.id_to_piece(i): i + 1 for i in range(3, len(segmenter))}}

        def find_pieces(text: str) -> list[int]:
            return [i + 1 if i else ids["<unk>"] for i in segmenter.encode(text)]
    else:
        tokenizer = transformers.NllbTokenizer.from_pretrained(source)
        tokenizer.save_pretrained(folder / "saved")
        (source / "sentencepiece.bpe.model").unlink()
        (source / "tokenizer.json").write_bytes((folder / "saved" / "tokenizer.json").read_bytes())
        tokenizer._tokenizer.encode_special_tokens = True
        ids = tokenizer.get_vocab()
        languages = {code: ids[code] for code in languages}
        model.lm_head.bias.data[ids["<mask>"]] = -1000
        model.lm_head.bias.data[[*languages.values()]] = 0

        def find_pieces(text: str) -> list[int]:
            return tokenizer._tokenizer.encode(text, add_special_tokens=False).ids

    assert_succeeded(tmt("import", source, "--output", folder / "run", "--src-lang", src, "--tgt-lang", tgt))
    translator = load(folder / "run")

    def encode(text: str) -> Any:
        source_ids = torch.tensor([[languages[form.format(src)], *find_pieces(text), 2]])
        return {"input_ids": source_ids, "attention_mask": torch.ones_like(source_ids)}

    rows, first = map_ids({**ids, **languages}, translator.tokenizers.src, form), [languages[form.format(tgt)]]
    return Imported(folder, model, encode, find_pieces, rows, rows, translator, f"{src}:{tgt}", first)


VARIANTS = [*MARIAN, "nllb-spm", "nllb-json", "m2m"]


@pytest.fixture(scope="module", params=VARIANTS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Imported:
    make = import_marian if request.param in MARIAN else import_m2m100
    return make(tmp_path_factory.mktemp("import"), request.param, tmt)


def test_texts_have_the_pieces_of_transformers(imported: Imported) -> None:
    texts = [*(src for src, _ in load_pairs("test")), *ODD_TEXTS]
    for text, ids in zip(texts, imported.translator.tokenizers.src.encode(texts), strict=True):
        assert [imported.src_rows[i] for i in ids] == imported.pieces(text), text


def test_logits_are_those_of_transformers(imported: Imported) -> None:
    translator, rows, model = imported.translator, imported.tgt_rows, imported.model
    tokenizers = translator.tokenizers
    kept = [i for i in range(len(rows)) if rows[i] is not None and rows[i] not in rows[:i]]  # without copies
    bias = torch.zeros(model.lm_head.out_features) if model.lm_head.bias is None else model.lm_head.bias.detach()
    n_excluded = int((bias + getattr(model, "final_logits_bias", 0.0) < -500).sum())
    assert len({rows[i] for i in kept}) == model.lm_head.out_features - n_excluded
    src_tag, tgt_tag = tokenizers.tag_ids(imported.tag)
    generator = torch.Generator().manual_seed(1)
    for text, _ in load_pairs("test")[:20]:
        tgt = [kept[int(i)] for i in torch.randint(len(kept), (9,), generator=generator)]
        tgt = [i for i in tgt if i < tokenizers.tgt.pad_id]
        batch = collate_pairs(translator.encode([text], [1], [src_tag]), [tgt_tag + tgt], tokenizers)
        start = model.config.decoder_start_token_id
        decoder_ids = torch.tensor([[start, *imported.first, *(rows[i] for i in tgt)]])
        with torch.no_grad():
            ours = translator.model.logits(translator.model(batch.src, batch.tgt_in))[0]
            theirs = model(**imported.encode(text), decoder_input_ids=decoder_ids).logits[0]
        theirs = (theirs - bias)[:, [rows[i] for i in kept]]
        torch.testing.assert_close(ours[:, kept], theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.slow
def test_beams_are_those_of_transformers(imported: Imported) -> None:
    texts = [src for src, _ in load_pairs("test")[:40]]
    translator, model = imported.translator, imported.model
    if model.lm_head.bias is not None:
        translator = load(imported.folder / "run")
        translator.model.output.bias.data[translator.tokenizers.tgt.eos_id] += 5
        translator.engine = TorchEngine([translator.model], translator.tokenizers)
    options = {"forced_bos_token_id": imported.first[0]} if imported.first else {}
    expected = translate_with_transformers(model, [imported.encode(text) for text in texts], 60, **options)
    together = [n_best[0] for n_best in translator.n_best(texts, tags=[imported.tag] * len(texts))]
    n_first = len(imported.first)
    for text, ours, (theirs, score) in zip(texts, together, expected, strict=True):
        assert [imported.tgt_rows[i] for i in to_ids(translator, ours.tokens)] == theirs[
            n_first : n_first + len(ours.tokens)
        ], text
        assert ours.score / (n_first + len(ours.token_scores)) == pytest.approx(score, rel=1e-4)
    alone = [translator.n_best([text], tags=[imported.tag])[0][0].text for text in texts[:10]]
    assert alone == [each.text for each in together[:10]]


def to_ids(translator: Translator, tokens: Sequence[str]) -> list[int]:
    tokenizer = translator.tokenizers.tgt
    entries = tokenizer.tokens(range(tokenizer.vocab_size))
    return [entries.index(token) for token in tokens]


def test_settings_of_the_source_are_those_of_the_run(imported: Imported) -> None:
    record = json.loads((imported.folder / "run" / "run.json").read_text("utf-8"))
    assert record["provenance"]["imported"]["format"] == type(imported.model).__name__
    assert imported.translator.config.beam == 4
    assert imported.translator.tokenizers.needs_tag == (imported.tag is not None)


@pytest.mark.parametrize("min_length", [0, 1, 2, 3, 8])
def test_minimum_length_is_that_of_transformers(imported: Imported, min_length: int, tmp_path: Path, tmt: Tmt) -> None:
    """The end is the most likely token, so each translation is as short as allowed."""
    shutil.copytree(imported.folder / "source", tmp_path / "source")
    path = tmp_path / "source" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"min_length": min_length}), "utf-8")
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "run"))
    translator, eos = load(tmp_path / "run"), imported.model.config.eos_token_id
    translator.model.output.bias.data[translator.tokenizers.tgt.eos_id] += 100
    found = translator.n_best(["The dog sees a man."], tags=[imported.tag], beam=1)[0][0].tokens
    bonus = torch.zeros(imported.model.lm_head.out_features).index_fill(0, torch.tensor([eos]), 100)
    options = {"forced_bos_token_id": imported.first[0]} if imported.first else {}
    ids = imported.model.generate(
        **imported.encode("The dog sees a man."),
        min_length=min_length,
        num_beams=1,
        logits_processor=[lambda _, scores: scores + bonus],
        **options,
    )[0].tolist()
    assert len(found) == ids.index(eos, 1) - 1 - len(imported.first)


def test_import_logs_that_no_repeat_ngram_size_is_ignored(tmt: Tmt, tmp_path: Path) -> None:
    make_marian(tmp_path / "source")
    path = tmp_path / "source" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"no_repeat_ngram_size": 3}), "utf-8")
    done = tmt("import", tmp_path / "source", "--output", tmp_path / "run")
    assert_succeeded(done)
    assert "no_repeat_ngram_size" in done.stderr


@pytest.mark.slow
def test_other_commands_read_the_run(
    imported: Imported, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tag = imported.folder / "run", ["--tag", imported.tag] if imported.tag else []
    monkeypatch.chdir(tmp_path)
    for side, name in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in load_pairs("test")[:20])
        Path(f"pairs.{name}").write_text(text, "utf-8")
    options = ["--device", "cpu", "--max-length", "30"]
    assert len(assert_succeeded(tmt("translate", run, "--input", "pairs.en", *tag, *options)).splitlines()) == 20
    assert_succeeded(tmt("evaluate", run, "--src", "pairs.en", "--ref", "pairs.de", *tag, *options))
    assert_succeeded(tmt("explain", run, "The man sees a dog.", *tag))
    engine = assert_succeeded(tmt("export", run, "--to", "ctranslate2", "--output", "engine", "--src", "pairs.en"))
    assert "20 of 20 translations identical" in engine
    done = tmt("train", "--config", run / "config.yaml", f"runs_dir={tmp_path}")
    assert done.returncode == 2
    assert "train.init_from" in done.stderr
    both = json.dumps({"src": "pairs.en", "tgt": "pairs.de", "tag": imported.tag})
    Path("tuned.yaml").write_text(
        f"base: {run}/config.yaml\ndata: {{train: {both}, validation: {both}, max_length: 40}}\ndevice: cpu\n"
        f"train: {{init_from: {run}, max_steps: 2}}\nvalidation: {{every: 2, probes: 0}}\nprecision: fp32\n",
        "utf-8",
    )
    assert_succeeded(tmt("train", "--config", "tuned.yaml"))
    assert_succeeded(tmt("translate", "runs/tuned", "--input", "pairs.en", *tag, *options))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ctranslate2_converts_the_source_to_the_same_model(tmt: Tmt, tmp_path: Path) -> None:
    """Compare with CTranslate2's own converter, which supports one number of heads and a zero row for the start."""
    import ctranslate2

    make_marian(tmp_path / "source", is_published=True, decoder_attention_heads=4)
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "run"))
    ctranslate2.converters.TransformersConverter(str(tmp_path / "source")).convert(str(tmp_path / "converted"))
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "source")
    texts = [src for src, _ in load_pairs("test")[:40]]
    tokens = [tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids) for text in texts]
    engine = ctranslate2.Translator(str(tmp_path / "converted"), intra_threads=1)
    theirs = engine.translate_batch(tokens, beam_size=4, max_decoding_length=30, min_decoding_length=1)
    ours = load(tmp_path / "run").with_options({"max_length_offset": 30, "min_length": 1})
    found = [[token.strip("\ufdd0\ufdd1") for token in best.tokens] for best, *_ in ours.n_best(texts)]
    same = [one == other.hypotheses[0] for one, other in zip(found, theirs, strict=True)]
    assert sum(same) >= 38  # the search of CTranslate2 ends by another rule at the length limit


# --- SentencePiece models keep their segmentation when their pieces get other ids -------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bytes": {"byte_fallback": True},
    "spaces": {"split_by_whitespace": False, "remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": ["<url>", "@@"]},
}


def make_texts() -> list[str]:
    """Return sentences, odd texts, and random mixtures of their characters."""
    sentences = [text for pair in load_pairs("test")[:300] for text in pair]
    rng, characters = random.Random(1), "".join([*ODD_TEXTS, *sentences[:40], "<url> @@"])
    mixed = ["".join(rng.choices(characters, k=rng.randrange(1, 40))) for _ in range(1000)]
    return [*sentences, *ODD_TEXTS, *(f"{text} <url>@@x" for text in ODD_TEXTS), *mixed]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_vocabulary_in_another_order_has_the_same_pieces(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "sentencepiece.model"
    lines = [text for pair in load_pairs("train")[:1500] for text in pair]
    train_sentencepiece(path, lines, 520, kind, **OPTIONS[name])
    proto = pretrained.parse_sentencepiece(path, str(path))
    names = [piece.piece for piece in proto.pieces if piece.type != pretrained.CONTROL]
    random.Random(1).shuffle(names)
    tokenizer = Tokenizer(pretrained.convert_sentencepiece(proto, [*names, "Foreign", "▁Foreign"]))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    texts = make_texts()
    for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
        expected = [piece if piece in names else "<unk>" for piece in theirs.encode(text, out_type=str)]
        assert [names[i] for i in ids] == expected, text
    sentences = texts[:600]
    decoded = tokenizer.decode(tokenizer.encode(sentences))
    known = [[i for i in ids if not theirs.is_unknown(i)] for ids in theirs.encode(sentences)]
    assert [text.strip() for text in decoded] == [theirs.decode(ids).strip() for ids in known]


def test_pieces_that_a_vocabulary_lacks_are_not_used(tmp_path: Path) -> None:
    lines = [text for pair in load_pairs("train")[:1500] for text in pair]
    for kind in ("unigram", "bpe"):
        path = tmp_path / f"{kind}.model"
        train_sentencepiece(path, lines, 520, kind, character_coverage=1.0)
        proto = pretrained.parse_sentencepiece(path, str(path))
        names = [piece.piece for piece in proto.pieces if piece.type != pretrained.CONTROL]
        kept = [name for i, name in enumerate(names) if len(name) == 1 or name == "<unk>" or i % 2]
        tokenizer = Tokenizer(pretrained.convert_sentencepiece(proto, kept))
        assert tokenizer.decode(tokenizer.encode(lines[:100])) == lines[:100]


# --- Training of an imported model beside Transformers and PyTorch's own optimizer ------------------------------------

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


# --- Pruning keeps the pieces that a text needs: the same segmentation of the text, and the same logits ---------------

TO_PRUNE: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "two segmenters": (make_marian, {"tags": ("fra", "por")}, "por"),
    "two vocabularies": (make_marian, {"shared": False}, None),
    "bpe": (make_m2m100, {"kind": "nllb"}, "eng_Latn:deu_Latn"),
}


@pytest.mark.parametrize("name", TO_PRUNE)
def test_pruned_model_has_the_same_pieces_and_logits(name: str, tmp_path: Path, tmt: Tmt) -> None:
    make, options, tag = TO_PRUNE[name]
    make(tmp_path / "source", **options)
    pairs = load_pairs("test")[:12]
    for side, file in enumerate(("text.en", "text.de")):
        (tmp_path / file).write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    corpus = ["--corpus", tmp_path / "text.en", "--corpus", tmp_path / "text.de"]
    kept = ["--languages", tag.replace(":", ",")] if tag else []
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "full"))
    assert_succeeded(tmt("import", tmp_path / "source", "--output", tmp_path / "small", *corpus, *kept))
    full, small = (load_plain(tmp_path / run, device="cpu", precision="fp32") for run in ("full", "small"))
    assert small.tokenizers.tgt.vocab_size < full.tokenizers.tgt.vocab_size
    entries, fewer = (each.tokenizers.tgt.tokens(range(each.tokenizers.tgt.vocab_size)) for each in (full, small))
    columns = [entries.index(entry) for entry in fewer]
    assert {*"".join(tgt for _, tgt in pairs)} & {*entries} <= {*fewer}
    batches = []
    for each in (full, small):
        src_tag, first = each.tokenizers.tag_ids(tag)
        sources, targets = each.encode([src for src, _ in pairs], range(12), 12 * [src_tag]), each.tokenizers.tgt
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
