"""Word alignment from the cross-attention, compared with plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from transformer_mt.data.batches import collate_sources
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import NormalizationStep, TokenizerConfig, TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.decoding.decoding_config import DecodingConfig
from transformer_mt.decoding.engine import TorchEngine, align_batch, align_words, target_word_indices
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.model.transformer import Transformer, cross_attention_weights

MakeModel = Callable[..., Transformer]
SENTENCES = [src for src, _ in load_pairs("test")[:12]]


@pytest.fixture
def make_translator(make_model: MakeModel, small_tokenizers: TokenizerPair) -> Callable[..., Translator]:
    def make_translator(**settings: object) -> Translator:
        src, tgt = small_tokenizers.src, small_tokenizers.tgt
        sizes = {"vocab": (src.vocab_size, tgt.vocab_size), "pad": (src.pad_id, tgt.pad_id)}
        model = make_model(**sizes, rough=0.4, **settings).eval()
        return Translator(
            TorchEngine([model], small_tokenizers),
            small_tokenizers,
            DecodingConfig(max_length_factor=1, max_length_offset=3),
        )

    return make_translator


def test_word_weights_are_sums_over_the_tokens_of_both_words() -> None:
    """Compare with examples worked out by hand."""
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.4, 0.5], [0.45, 0.3, 0.25], [0.1, 0.2, 0.7]])
    assert align_words(weights, [0, 1, 1], [0, 1, 1, 2]) == [(0, 0), (1, 1), (1, 2)]
    assert align_words(weights[:1], [0, 1, 2], [0]) == [(0, 0)], (
        "with one token per word, the first word has the highest weight"
    )
    assert align_words(weights[:1], [0, 1, 1], [0]) in ([(0, 0)], [(1, 0)])  # a tie
    assert align_words(weights, [], [0, 0, 0, 0]) == align_words(weights[:0], [0, 1, 2], []) == []


def test_word_indices_from_text_and_from_ids_agree(small_tokenizers: TokenizerPair) -> None:
    tokenizer = small_tokenizers.src
    coded, numbers = tokenizer.encode(SENTENCES), tokenizer.word_indices(SENTENCES)
    for text, ids, found in zip(SENTENCES, coded, numbers, strict=True):
        assert found == target_word_indices(tokenizer, ids), "indices from the text and from its ids agree"
        assert sorted(set(found)) == list(range(len(text.split()))) and found == sorted(found)
        assert len(found) > len(set(found)), "some word has several tokens"
        for number, word in enumerate(text.split()):
            of_word = [one for one, other in zip(ids, found, strict=True) if other == number]
            assert tokenizer.decode([of_word])[0].strip() == word


@pytest.mark.parametrize(
    "text", ["", " ", "\u2003a  b\u00a0c\u0085", "\u200ba \u3000 b", "\x1ca\x1fb c", "ab\U0001f600 c"]
)
def test_words_are_separated_like_str_split(text: str, small_tokenizers: TokenizerPair) -> None:
    tokenizer = small_tokenizers.src
    ends = [end for _, end in tokenizer.backend.encode(text, add_special_tokens=False).offsets]
    assert tokenizer.word_indices([text]) == [[max(0, len(text[:end].split()) - 1) for end in ends]]


@pytest.mark.parametrize("normalization", [(), ("NFKC", "spaces", "lowercase")])
def test_unknown_token_inside_a_word_belongs_to_that_word(
    normalization: tuple[NormalizationStep, ...],
) -> None:
    config = TokenizerConfig(kind="word", vocab_size=60, normalization=normalization, min_frequency=1)
    tokenizer = build_tokenizers(config, [("a dog's bone", "ein Knochen")]).src
    text = "  a \u00a7dog\u2192\u00a7's  bone\u00a7 a"
    ((ids,), (found,)) = tokenizer.encode([text]), tokenizer.word_indices([text])
    pieces = [piece for piece in tokenizer.tokens(ids) if piece.strip()]
    assert pieces.count("<unk>") >= 3 and len(found) == len(ids)
    assert sorted(set(found)) == [0, 1, 2, 3] and found == sorted(found)
    assert len(target_word_indices(tokenizer, ids)) == len(found) and max(target_word_indices(tokenizer, ids)) > 3, (
        "each is shown as a word"
    )


def test_truncated_source_is_aligned_only_up_to_the_cut(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    with pytest.warns(TruncatedSourceWarning):
        ((cut,),) = translator.n_best(SENTENCES[:1], alignments=True, max_source_length=4)
    assert (
        cut.alignment
        and max(source for source, _ in cut.alignment) <= translator.tokenizers.src.word_indices(SENTENCES)[0][3]
    )


def test_alignment_equals_plain_loops_over_the_attention_weights(make_translator: Callable[..., Translator]) -> None:
    """The reference reads each sentence alone; the batch has sentences of different lengths."""
    translator = make_translator(decoder={"n_layers": 2})
    model, pair = translator.model, translator.tokenizers
    texts = [text[: 12 * (i + 1)] for i, text in enumerate(SENTENCES[:4])]
    sources, targets = pair.src.encode(texts), pair.tgt.encode([text[::-1] for text in texts])
    expected: list[list[tuple[int, int]]] = []
    for text, source, target in zip(texts, sources, targets, strict=True):
        read = torch.tensor([[pair.tgt.bos_id, *target[:-1]]])
        cross = cross_attention_weights(model, collate_sources([source], pair), read)
        weights = torch.stack(cross).mean((0, 2))[0]  # [T, S + 1]
        (src_words,), tgt_words = pair.src.word_indices([text]), target_word_indices(pair.tgt, target)
        wanted: list[tuple[int, int]] = []
        for tgt_word in sorted(set(tgt_words)):
            rows = [t for t, word in enumerate(tgt_words) if word == tgt_word]
            masses = [
                sum(float(weights[t, s]) for t in rows for s, word in enumerate(src_words) if word == src_word)
                for src_word in range(max(src_words) + 1)
            ]
            wanted.append((masses.index(max(masses)), tgt_word))
        expected.append(wanted)
    src_words = pair.src.word_indices(texts)
    assert len({*map(len, targets)}) == len(targets)
    assert align_batch(translator.torch_engine.models, pair, sources, src_words, targets) == expected


def test_alignment_is_valid_and_independent_of_the_batch(make_translator: Callable[..., Translator]) -> None:
    """Blank lines and n-best lists are included."""
    translator = make_translator()
    texts = ["", *SENTENCES[:5], "  "]
    together = translator.n_best(texts, n_best=2, alignments=True)
    for text, found in zip(texts, together, strict=True):
        (alone,) = translator.n_best([text], n_best=2, alignments=True)
        assert [one.alignment for one in found] == [one.alignment for one in alone]
        for one in found:
            assert one.alignment is not None
            assert all(source < len(text.split()) for source, _ in one.alignment)
            assert all(target < max(1, len(one.text.split())) for _, target in one.alignment)
    assert not together[0][0].alignment and any(found[0].alignment for found in together)
    assert all(found[0].alignment is None for found in translator.n_best(SENTENCES[:2]))


def test_alignment_of_a_translation_that_fills_all_positions(make_translator: Callable[..., Translator]) -> None:
    """Trap 10: the last position predicts the last token, and no position reads it."""
    translator = make_translator(positions="learned", max_positions=12)
    ((found,),) = translator.n_best(["x"], alignments=True, min_length=12, max_length_offset=20)
    assert len(found.tokens) == 12 and found.alignment
