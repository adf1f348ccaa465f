"""The tokenised corpus: pairs are filtered as pairs (trap 35), cut so that the end symbol stays (33), and counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from transformer_mt.config.root import Config
from transformer_mt.data import corpus
from transformer_mt.data import encoding as encoded
from transformer_mt.data.batches import BatchStream
from transformer_mt.data.corpus import ParallelCorpus, load_corpus
from transformer_mt.data.encoding import EncodedCorpus, EncodedSide, FilterCounts, LengthLimit, encode_corpus
from transformer_mt.data.sources import Source
from transformer_mt.data.tokenizers.config import TokenizerConfig
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair, build_tokenizers
from transformer_mt.errors import UserError
from transformer_mt.pipeline.data import encode_training

PAIRS = [
    ("a b c", "x y"),
    ("", "empty source"),
    ("empty target", " \t"),
    ("a a a a a a", "x"),
    ("a", "y y y y y y y"),
    ("\u2028", "\u00a0"),
    ("b c", "y x"),
    ("a b c d e", "x y z x y"),
]
LIMIT = LengthLimit(6, "drop")  # five tokens and the end symbol


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    """A letter, with the space before it, is one token."""
    pairs = build_tokenizers(
        TokenizerConfig(vocab_size=300, joint=False, min_frequency=1), [("a b c d e" * 9, "x y z" * 9)]
    )
    assert [len(ids) for ids in pairs.src.encode(["a b c d e", "a"])] == [5, 1]
    return pairs


def make_table(pairs: Sequence[tuple[str, str]] = PAIRS) -> ParallelCorpus:
    Path("t.en").write_text("".join(src + "\n" for src, _ in pairs), encoding="utf-8")
    Path("t.de").write_text("".join(tgt + "\n" for _, tgt in pairs), encoding="utf-8")
    return load_corpus(Source(src=("t.en",), tgt=("t.de",)), "en", "de", Path("cache"))


def texts(found: EncodedCorpus, tokenizers: TokenizerPair) -> list[tuple[str, str]]:
    sides = zip((found.src, found.tgt), (tokenizers.src, tokenizers.tgt), strict=True)
    src, tgt = (tokenizer.decode([side[i].tolist() for i in range(len(side))]) for side, tokenizer in sides)
    return list(zip(src, tgt, strict=True))


def test_pairs_are_filtered_as_pairs(tokenizers: TokenizerPair) -> None:
    found = encode_corpus(make_table(), tokenizers, LIMIT, Path("cache"))
    assert texts(found, tokenizers) == [PAIRS[row] for row in (0, 6, 7)]
    assert found.text_rows.tolist() == [0, 6, 7]
    assert found.filtered == FilterCounts(
        empty=3, too_long=2, truncated=0, examples={"empty": [1, 2, 5], "too_long": [3, 4]}
    )


def test_long_pairs_are_cut_where_that_is_asked_for(tokenizers: TokenizerPair) -> None:
    found = encode_corpus(make_table(), tokenizers, LengthLimit(6, "truncate"), Path("cache"))
    cut = [PAIRS[0], ("a a a a a", "x"), ("a", "y y y y y"), PAIRS[6], PAIRS[7]]
    assert texts(found, tokenizers) == cut
    assert found.text_rows.tolist() == [0, 3, 4, 6, 7]
    assert found.filtered == FilterCounts(
        empty=3, too_long=0, truncated=2, examples={"empty": [1, 2, 5], "truncated": [3, 4]}
    )


def test_a_cut_pair_still_ends_in_eos(tokenizers: TokenizerPair) -> None:
    found = encode_corpus(make_table(), tokenizers, LengthLimit(4, "truncate"), Path("cache"))
    stream = BatchStream(found, tokenizers, tokens=10_000, seed=1)
    (batch,) = stream.shortest_first()
    assert batch.src.shape[1] == batch.labels.shape[1] == 4
    for ids, tokenizer in ((batch.src, tokenizers.src), (batch.labels, tokenizers.tgt)):
        assert all((row == tokenizer.eos_id).sum() == 1 for row in ids)


def test_the_lines_of_a_batch(tokenizers: TokenizerPair) -> None:
    """Named by the lines of the file, not by the places among the pairs that were kept."""
    table = make_table([*PAIRS, *[("a b c d", "x")] * 1500])
    found = encode_corpus(table, tokenizers, LIMIT, Path("cache"))
    (batch,) = BatchStream(found, tokenizers, tokens=10_000, seed=1).shortest_first()
    assert found.describe_lines(np.array([2, 0, 1], np.int32)) == "t.en:8, t.en:1, t.en:7"
    assert batch.rows[:5].tolist() == [3, 4, 5, 6, 7]
    assert found.describe_lines(batch.rows) == "t.en:9, t.en:10, t.en:11, t.en:12, t.en:13, ... and 1,498 more"


def test_held_out_pairs_are_kept_as_they_are(tokenizers: TokenizerPair) -> None:
    found = encode_corpus(make_table(), tokenizers, None, Path("cache"))
    assert len(found) == len(PAIRS)
    assert texts(found, tokenizers) == PAIRS
    assert found.filtered == FilterCounts()


def test_what_normalisation_leaves_nothing_of_is_empty() -> None:
    config = TokenizerConfig(vocab_size=300, min_frequency=1, normalization=("control_characters",))
    found = encode_corpus(
        make_table([("a", "x"), ("\x07", "x"), ("a", "\x07")]), build_tokenizers(config, PAIRS), LIMIT, Path("cache")
    )
    assert (len(found), found.filtered) == (1, FilterCounts(empty=2, examples={"empty": [1, 2]}))


@pytest.mark.parametrize("block", [1, 2, 3, 8])
@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_blocks_make_no_difference(
    block: int, too_long: str, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = LengthLimit(6, "drop" if too_long == "drop" else "truncate")
    whole = encode_corpus(make_table(), tokenizers, limit, Path("whole"))
    monkeypatch.setattr(corpus, "BLOCK", 3)
    monkeypatch.setattr(encoded, "BLOCK", block)
    found = encode_corpus(make_table(), tokenizers, limit, Path("blocks"))
    assert texts(found, tokenizers) == texts(whole, tokenizers)
    assert found.text_rows.tolist() == whole.text_rows.tolist()
    assert found.filtered == whole.filtered


def test_only_the_first_few_losses_are_named(tokenizers: TokenizerPair) -> None:
    found = encode_corpus(make_table([("a", "")] * 9 + [("a", "x")]), tokenizers, LIMIT, Path("cache"))
    assert found.filtered == FilterCounts(empty=9, examples={"empty": [0, 1, 2, 3, 4]})


def test_ids_are_compact_and_mapped(tokenizers: TokenizerPair) -> None:
    found = encode_corpus(make_table(), tokenizers, LIMIT, Path("cache"))
    for side in (found.src, found.tgt):
        assert isinstance(side.ids, np.memmap)
        assert side.ids.dtype == np.int32
        assert side.lengths.tolist() == [len(side[i]) for i in range(len(side))]
        assert side.lengths.sum() == len(side.ids)


def test_a_side() -> None:
    side = EncodedSide(np.array([5, 6, 7], np.int32), np.array([0, 2, 2, 3]))
    assert len(side) == 3
    assert [side[i].tolist() for i in range(3)] == [[5, 6], [], [7]]
    assert side.lengths.tolist() == [2, 0, 1]


def test_an_unchanged_corpus_is_encoded_once(tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other_table = make_table(), make_table(PAIRS[::-1])
    other_tokenizers = build_tokenizers(TokenizerConfig(vocab_size=300), PAIRS)
    written: list[object] = []
    write = encoded._write

    def spy(*arguments: object) -> FilterCounts:
        written.append(arguments)
        return write(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(encoded, "_write", spy)
    first = encode_corpus(table, tokenizers, LIMIT, Path("cache"))
    again = encode_corpus(table, tokenizers, LIMIT, Path("cache"))
    assert len(written) == 1
    assert texts(again, tokenizers) == texts(first, tokenizers)
    assert again.filtered == first.filtered
    for changed in (
        (other_table, tokenizers, LIMIT),
        (table, other_tokenizers, LIMIT),
        (table, tokenizers, LengthLimit(7, "drop")),
        (table, tokenizers, LengthLimit(6, "truncate")),
        (table, tokenizers, None),
        (table.select(np.array([0]), "first"), tokenizers, LIMIT),
    ):
        encode_corpus(*changed, Path("cache"))
    assert len(written) == 7


@pytest.mark.parametrize(
    ("pairs", "max_length", "reason"),
    [
        ([("", "x"), ("a", "")], 9, "2 have an empty side, 0 are longer than data.max_length 9"),
        ([("a a a", "x"), ("", "x")], 3, "1 have an empty side, 1 are longer than data.max_length 3"),
    ],
)
def test_nothing_left_to_train_on(
    pairs: list[tuple[str, str]], max_length: int, reason: str, tokenizers: TokenizerPair
) -> None:
    data = {"src_lang": "en", "tgt_lang": "de", "cache_dir": "cache", "max_length": max_length}
    config = Config.model_validate({"data": {**data, "train": {"builtin": "quickstart"}}})
    with pytest.raises(UserError) as caught:
        encode_training(config, make_table(pairs), tokenizers)
    assert str(caught.value) == f"data.train: none of 2 pairs is left: {reason}"
