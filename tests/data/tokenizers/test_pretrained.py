"""Loading of existing tokenizers: same ids as the original, without its special tokens and templates."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers import pretrained
from transformer_mt.data.tokenizers.pretrained import parse_sentencepiece
from transformer_mt.data.tokenizers.tokenizer import Tokenizer, TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.tools.augmentation.subword_sampling import SubwordSampler

PAIRS = load_pairs("test")[:200]
TEXTS = [text for pair in PAIRS for text in pair]
STRANGE = ["", " ", "  two  spaces ", "<s> </s> <pad> <0x41> [CLS]", "語 é 😀", "Der Hund, 2024!", "\ta\n"]


def load_file(path: Path, kind: str = "bpe") -> Tokenizer:
    return build_tokenizers(TokenizerConfig.model_validate({"file": str(path), "kind": kind}), PAIRS).src


def make_hugging_face(model: str, normalizer: normalizers.Normalizer | None = None) -> hf.Tokenizer:
    """Return a Hugging Face tokenizer with special tokens, a template, padding and truncation."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    kinds: dict[str, tuple[Any, Any]] = {
        "word": (models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(special_tokens=special)),
        "wordpiece": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(special_tokens=special)),
        "bpe": (
            models.BPE(unk_token="[UNK]", dropout=0.5),
            trainers.BpeTrainer(vocab_size=300, special_tokens=special),
        ),
        "byte_bpe": (models.BPE(), trainers.BpeTrainer(vocab_size=400, special_tokens=special)),
        "unigram": (
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="[UNK]"),
        ),
    }
    made, trainer = kinds[model]
    found = hf.Tokenizer(made)
    found.normalizer = normalizer or normalizers.Lowercase()
    found.pre_tokenizer = pre_tokenizers.ByteLevel() if model == "byte_bpe" else pre_tokenizers.Metaspace()
    found.decoder = decoders.ByteLevel() if model == "byte_bpe" else decoders.Metaspace()
    trainer.show_progress = False
    found.train_from_iterator(TEXTS, trainer)
    found.add_tokens([AddedToken("Hund", special=False, normalized=False)])
    found.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    found.enable_padding(length=50)
    found.enable_truncation(7)
    return found


@pytest.fixture(params=["word", "wordpiece", "bpe", "byte_bpe", "unigram"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


# --- tokenizer.json of Hugging Face -----------------------------------------------------------------------------------


def test_hugging_face_file_gives_the_same_ids(kind: str, tmp_path: Path) -> None:
    """Template, padding, truncation and dropout are removed."""
    original = make_hugging_face(kind)
    original.save(str(tmp_path / "other.json"))
    found = load_file(tmp_path / "other.json", kind)
    original.no_padding()
    original.no_truncation()
    if kind == "bpe":
        setattr(original.model, "dropout", None)  # noqa: B010  (the library's types lack it)
    assert found.encode(TEXTS) == [original.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert all("Hund" in found.tokens(ids) for ids in found.encode(["Der Hund", "ein Hund da"]))
    assert found.vocab_size == original.get_vocab_size() + 3
    content = json.loads(found.to_json())
    assert (content["padding"], content["truncation"], content["post_processor"]) == (None, None, None)
    assert [token["content"] for token in content["added_tokens"]] == ["Hund"]


def test_literal_special_token_encodes_as_text(kind: str, tmp_path: Path) -> None:
    """Trap 30, also after saving and loading."""
    make_hugging_face(kind, normalizers.NFC()).save(str(tmp_path / "other.json"))
    found = load_file(tmp_path / "other.json", kind)
    TokenizerPair(found, found).save(tmp_path / "tokenizer.json")
    for tokenizer in (found, TokenizerPair.load(tmp_path / "tokenizer.json").tgt):
        (ids,) = tokenizer.encode(["a [CLS][SEP] [PAD] </s> b"])
        assert not {"[CLS]", "[SEP]", "[PAD]"} & {*tokenizer.tokens(ids)}
        assert max(ids) < tokenizer.pad_id


def test_bert_normalizer_gives_the_same_ids(tmp_path: Path) -> None:
    """BERT's normalizer removes private-use characters."""
    original = make_hugging_face("wordpiece", normalizers.BertNormalizer())
    original.no_truncation()
    original.no_padding()
    original.save(str(tmp_path / "other.json"))
    found = load_file(tmp_path / "other.json", "wordpiece")
    assert found.encode(TEXTS) == [original.encode(text, add_special_tokens=False).ids for text in TEXTS]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"], indirect=True)
def test_loaded_vocabulary_supports_subword_sampling(kind: str, tmp_path: Path) -> None:
    make_hugging_face(kind).save(str(tmp_path / "other.json"))
    found = load_file(tmp_path / "other.json", kind)
    resample, coded = SubwordSampler(found, 0.5, 1, 999), found.encode([text.lower() for text in TEXTS])
    drawn = [resample(ids, 0, 0, row) for row, ids in enumerate(coded)]
    assert found.decode(drawn) == found.decode(coded)
    assert sum(map(len, drawn)) > sum(map(len, coded))


# --- of a run ---------------------------------------------------------------------------------------------------------


def test_tokenizers_of_a_run_can_be_reused(tmp_path: Path) -> None:
    for joint in (True, False):
        first = build_tokenizers(TokenizerConfig(joint=joint, vocab_size=400), PAIRS)
        first.save(tmp_path / "tokenizer.json")
        name = str(tmp_path / "tokenizer.json")
        files = {"file": name} if joint else {"src_file": name, "tgt_file": name}
        again = build_tokenizers(TokenizerConfig.model_validate({"joint": joint, "source_bos": True, **files}), [])
        assert (again.joint, again.source_bos) == (joint, True)
        for old, new in ((first.src, again.src), (first.tgt, again.tgt)):
            assert new.encode([*TEXTS, *STRANGE]) == old.encode([*TEXTS, *STRANGE])
    with pytest.raises(UserError, match="src_file and tgt_file"):
        load_file(tmp_path / "tokenizer.json")


# --- SentencePiece ----------------------------------------------------------------------------------------------------


def make_sentencepiece(folder: Path, **options: Any) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, minloglevel=2, num_threads=1, **options
    )
    (folder / "spm.model").write_bytes(written.getvalue())
    return folder / "spm.model"


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram", "vocab_size": 200},
        {"model_type": "unigram", "vocab_size": 400, "byte_fallback": True, "user_defined_symbols": ["<sep>"]},
        {"model_type": "bpe", "vocab_size": 400, "byte_fallback": True, "normalization_rule_name": "identity"},
        {"model_type": "bpe", "vocab_size": 400, "remove_extra_whitespaces": False, "add_dummy_prefix": False},
    ],
    ids=str,
)
def test_sentencepiece_model_gives_the_same_ids_and_text(options: dict[str, Any], tmp_path: Path) -> None:
    path = make_sentencepiece(tmp_path, **options)
    import sentencepiece

    original: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
    found = load_file(path, options["model_type"])
    held_out = [text for pair in load_pairs("validation")[:200] for text in pair]
    strange = ["  two  spaces ", " ", "", "语 é ﬁ 😀", "ABC abc ①", "a<sep>b", "<sep>", "a <sep>>b", "a <unk> </s>b<s>"]
    texts = [*held_out, *strange]
    assert found.encode(texts) == [original.encode(text) for text in texts]
    assert found.decode(found.encode(texts)) == [original.decode(original.encode(text)) for text in texts]
    assert found.vocab_size == original.get_piece_size() + 3


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentencepiece_model_with_unused_pieces_is_refused(model_type: str, tmp_path: Path) -> None:
    """SentencePiece does not encode text to them, which our conversion cannot express."""
    path = make_sentencepiece(tmp_path, model_type=model_type, vocab_size=200)
    proto: Any = parse_sentencepiece(path, "")
    proto.ParseFromString(path.read_bytes())
    proto.pieces[100].type = 5  # UNUSED in sentencepiece_model.proto
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match=rf"tokenizer\.file: {path}: .*unused"):
        load_file(path, model_type)


def test_literal_byte_token_encodes_as_text(tmp_path: Path) -> None:
    """Trap 30."""
    path = make_sentencepiece(tmp_path, model_type="unigram", vocab_size=400, byte_fallback=True)
    found = load_file(path, "unigram")
    assert found.decode(found.encode(["<0x41>"])) == ["<0x41>"]


# --- wrong files ------------------------------------------------------------------------------------------------------

WRONG = {
    "text.json": b"hello",
    "other.json": b'{"model": 7}',
    "binary.json": b"\xff\xfe\x00",
    "text.model": b"hello, this is no model",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_is_refused(name: str, tmp_path: Path) -> None:
    if name.endswith(".model"):
        pytest.importorskip("sentencepiece")
    (tmp_path / name).write_bytes(WRONG[name])
    with pytest.raises(UserError) as caught:
        load_file(tmp_path / name)
    said = str(caught.value)
    assert said.startswith(f"tokenizer.file: {tmp_path / name}: is no")
    assert "a tokenizer.json (of Hugging Face tokenizers, or of a run) or a SentencePiece .model" in said


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("word", models.WordLevel({"a": 0}, unk_token="[UNK]"), "cannot encode text"),
        ("char", models.BPE({"a": 0}, []), "drops characters that it does not know"),
    ],
)
def test_vocabulary_that_cannot_encode_any_text_is_refused(name: str, model: Any, message: str, tmp_path: Path) -> None:
    hf.Tokenizer(model).save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=rf"tokenizer\.file: .*/t\.json: {message}"):
        load_file(tmp_path / "t.json", name)


def test_missing_file_or_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"tokenizer\.file: {tmp_path}/no\.json: "):
        load_file(tmp_path / "no.json")
    with pytest.raises(UserError, match=rf"tokenizer\.file: {tmp_path}: is a directory"):
        load_file(tmp_path)
    config = TokenizerConfig(src_file=str(tmp_path), tgt_file="no.json", joint=False)
    with pytest.raises(UserError, match=r"tokenizer\.src_file: .*: is a directory"):
        build_tokenizers(config, PAIRS)


def test_mismatched_kind_is_refused(tmp_path: Path) -> None:
    make_hugging_face("bpe").save(str(tmp_path / "other.json"))
    with pytest.raises(UserError, match=r"set tokenizer\.kind: bpe"):
        load_file(tmp_path / "other.json", "char")


def test_missing_sentencepiece_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spm.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"transformer_mt\[sentencepiece\]"):
        load_file(tmp_path / "spm.model")


# --- Tokenizers of strangers: growth, padding, ids and regular expressions without end --------------------------------

Content = dict[str, Any]


def add_normalizer(content: Content, *parts: Content) -> None:
    content["normalizer"] = {"type": "Sequence", "normalizers": [*parts, content["normalizer"]]}


def replace(pattern: Content, content: str) -> Content:
    return {"type": "Replace", "pattern": pattern, "content": content}


GROW = replace({"String": "e"}, "e" * 10)
CRAFTED: dict[str, tuple[Callable[[Content], object], str]] = {
    "growth": (lambda content: add_normalizer(content, *[GROW] * 12), "could make a text 1,000,000,000,000 times"),
    "growth of the output": (
        lambda content: content.update(decoder={"type": "Sequence", "decoders": [GROW, GROW, GROW]}),
        "replacements of its decoder",
    ),
    "padding": (
        lambda content: content.update(
            padding={
                "strategy": {"Fixed": 10**12},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "x",
            }
        ),
        "it has padding",
    ),
    "high id": (lambda content: content["model"]["vocab"].update({"\u4e00": 4_000_000_000}), "it has the id 4,000,000"),
}


def write(path: Path, pair: TokenizerPair, craft: Callable[[Content], object]) -> Path:
    content = pair.to_dict()
    craft(content["src"])
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("crafted", CRAFTED)
def test_a_crafted_tokenizer_is_refused(crafted: str, small_tokenizers: TokenizerPair, tmp_path: Path) -> None:
    craft, message = CRAFTED[crafted]
    path = write(tmp_path / "tokenizer.json", small_tokenizers, craft)
    with pytest.raises(UserError, match=rf"tokenizer.json: not a tokenizer of this program \(.*{message}"):
        TokenizerPair.load(path)
    if crafted != "padding":  # which is removed from a foreign tokenizer
        with pytest.raises(UserError, match=rf"tokenizer.file: .*tokenizer.json: .*{message}"):
            pretrained.load(path, "file", "bpe")


def test_endless_backtracking_ends_with_an_error(small_tokenizers: TokenizerPair, tmp_path: Path) -> None:
    """The library gives up with a panic, which is no `Exception`."""

    def craft(content: Content) -> None:
        add_normalizer(content, replace({"Regex": "(a+)+$"}, ""))

    pair = TokenizerPair.load(write(tmp_path / "tokenizer.json", small_tokenizers, craft))
    with pytest.raises(UserError, match=r"the tokenizer cannot encode the text: .*retry-limit"):
        pair.src.encode(["a" * 40 + "b"])
