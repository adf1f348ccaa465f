"""The explanation of a translation as an HTML page, or as labelled lines and tables, with the likely reasons."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from transformer_mt.data.tokenizers.tokenizer import BYTE_TOKENS
from transformer_mt.decoding.translator import Translator
from transformer_mt.system.log import format_probability, label_piece, make_visible
from transformer_mt.tools.analysis.explanation import Explanation, TokenPrediction
from transformer_mt.tools.languages.detection import describe_other_source
from transformer_mt.tools.pages.page_rendering import render_page
from transformer_mt.tools.robustness.guard import has_loop

NO_REASON = "none found: the words are known, and the model is certain of them"
REPETITION = "The translation repeats itself; tmt translate re-decodes such lines if decoding.guard is true."
MAX_NAMED = 3  # words of each kind
MANY_PIECES = 4  # pieces of a word, from which on it is probably rare
CHARACTERS_PER_PIECE = 2.5  # of such a word, at most: a long compound of common parts has more
CERTAIN = 0.5  # probability from which on a piece is no reason
NO_EFFECT = -0.5  # change of the log-probability from which on the translation hardly needs a word
SHORT_WORD = 3  # characters of a word in ASCII that many translations rightly leave out, such as an article


def find_likely_reasons(translator: Translator, explanation: Explanation) -> list[str]:
    """Return a sentence for each likely reason of a bad translation; none if nothing is unusual."""
    return [
        *_describe_language(translator, explanation.source),
        *_describe_words(translator, explanation.source),
        *_describe_uncertainty(explanation.predictions),
        *_describe_words_without_effect(explanation),
        *([REPETITION] if has_loop(explanation.source, explanation.translation) else []),
        *([] if explanation.finished else ["The translation was cut at the maximum length before it ended."]),
    ]


def _describe_language(translator: Translator, text: str) -> Iterator[str]:
    """Name another language that the text is certainly written in."""
    if translator.runs and (problem := describe_other_source("The text", text, translator.provenance())):
        yield f"{problem}."


def _describe_words(translator: Translator, text: str) -> Iterator[str]:
    """Name words that the tokenizer does not know or splits a lot, and a source longer than the training pairs."""
    tokenizer = translator.tokenizers.src
    words = [(word, list[int]()) for word in text.split()]
    for token, index in zip(*tokenizer.encode([text]), *tokenizer.word_indices([text]), strict=True):
        words[index][1].append(token)
    unknown = [
        word
        for word, ids in words
        if tokenizer.unk_id in ids
        or len(ids) > len(word) + 1  # a character is encoded as several bytes
        or any(token in BYTE_TOKENS for token in tokenizer.tokens(ids))
    ]
    if unknown:
        yield f"The vocabulary lacks {_name(unknown)}, or characters of it, so the model has hardly seen them."
    if any(len(piece) > 2 and not piece.startswith("<") for piece in tokenizer.backend.get_vocab()):  # not characters
        split = [
            (word, len(ids))
            for word, ids in words
            if word not in unknown and len(ids) >= MANY_PIECES and len(word) <= CHARACTERS_PER_PIECE * len(ids)
        ]
        for word, n_pieces in split[:MAX_NAMED]:
            name = make_visible(word)
            yield f'"{name}" is split into {n_pieces} pieces, so it is probably rare in the training text.'
        if 1 < len(words) < 2 * (len(split) + len(unknown)):
            yield "Most words are rare or unknown: is the text in the language and domain of the training text?"
    n_tokens = sum(len(ids) for _, ids in words)
    for run in translator.runs:
        if n_tokens > run.data.max_length:
            yield (
                f"The source has {n_tokens:,} pieces, and training pairs have at most {run.data.max_length:,} "
                "(data.max_length): translate its sentences one by one."
            )


def _describe_uncertainty(predictions: Sequence[TokenPrediction]) -> Iterator[str]:
    """Name the piece with the lowest probability, and what else was likely."""
    least = min(predictions, key=lambda prediction: prediction.probability)
    if least.probability < CERTAIN:
        others = "; ".join(
            f"{label_piece(other.piece)} {format_probability(other.probability)}"
            for other in least.alternatives
            if other.piece not in ("", least.piece)
        )
        piece, probability = label_piece(least.piece), format_probability(least.probability)
        yield f"The model is least certain of the piece {piece} ({probability}); its alternatives: {others}."


def _describe_words_without_effect(explanation: Explanation) -> Iterator[str]:
    """Name source words that no target word is aligned to, and that the translation does not need."""
    aligned = {source for word in explanation.words for source in word.source_words}
    missing = [
        one.word
        for one in explanation.left_out
        if one.change > NO_EFFECT and one.word not in aligned and _has_content(one.word)
    ]
    if missing and len(explanation.left_out) > 1:
        yield f"The translation hardly depends on {_name(missing)}: possibly left out."


def _has_content(word: str) -> bool:
    bare = word.strip(string.punctuation)
    return any(map(str.isalnum, bare)) and (len(bare) > SHORT_WORD or not bare.isascii() or not bare.isalpha())


def _name(words: Sequence[str]) -> str:
    """Return the first words in quotation marks, and how many more there are."""
    named = ", ".join(f'"{make_visible(word)}"' for word in dict.fromkeys(words[:MAX_NAMED]))
    return named + (f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else "")


MAX_TITLE = 60  # characters of the source


def render_html(explanation: Explanation, reasons: Sequence[str], origin: str) -> str:
    """Return the page. `reasons` are those of a bad translation, and `origin` names the model and the search."""
    source = explanation.source
    pieces = [label_piece(piece) for piece in explanation.src_pieces]
    predictions = _label_predictions(explanation.predictions)
    return render_page(
        "explain.html",
        title=source if len(source) <= MAX_TITLE else f"{source[:MAX_TITLE]}…",
        origin=origin,
        explanation=explanation,
        reasons=reasons or [NO_REASON],
        format_probability=format_probability,
        pieces=pieces,
        predictions=predictions,
        data={"pieces": pieces, "predictions": predictions, "attention": explanation.cross_attention},
    )


def _label_predictions(predictions: Sequence[TokenPrediction]) -> list[dict[str, Any]]:
    return [
        {
            "piece": label_piece(prediction.piece),
            "probability": prediction.probability,
            "entropy": prediction.entropy,
            "rank": prediction.rank,
            "alternatives": [(label_piece(other.piece), other.probability) for other in prediction.alternatives],
        }
        for prediction in predictions
    ]


# --- labelled lines and tables ----------------------------------------------------------------------------------------

N_ATTENDED = 3  # source pieces with the highest weights
N_ALTERNATIVES = 3  # most likely pieces of a position
LONGEST_BAR = 20


class Table(NamedTuple):
    """A table with its title."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int]  # columns that are aligned right


def list_facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Yield the label and the value of each line above the tables."""
    yield "source", explanation.source
    yield "pieces", " ".join(map(label_piece, explanation.src_pieces))
    yield "translation", explanation.translation + ("" if explanation.finished else " (cut at the maximum length)")
    score, ranking_score = explanation.score, explanation.ranking_score
    yield "score", f"log-probability {score:.4f}, with length penalty {ranking_score:.4f}"


def make_tables(explanation: Explanation) -> Iterator[Table]:
    """Yield the tables: pieces, words, and attention."""
    yield _make_prediction_table("target pieces", explanation.predictions)
    words = [
        (word.word, " ".join(word.source_words), format_probability(word.probability), f"{word.entropy:.2f}")
        for word in explanation.words
    ]
    yield Table("target words", ("word", "aligned to", "probability", "entropy"), words, (2, 3))
    effects = [
        (word.word, f"{word.change:+.3f}", "#" * round(LONGEST_BAR * abs(word.change) / explanation.largest_change))
        for word in explanation.left_out
    ]
    yield Table("translation without a source word", ("word", "log-probability", ""), effects, (1,))
    attended = [
        (label_piece(prediction.piece), _list_attended(explanation, weights))
        for prediction, weights in zip(explanation.predictions, explanation.mean_attention, strict=True)
    ]
    yield Table("cross-attention, mean of layers and heads", ("target piece", "highest weights"), attended, ())
    heads = [
        (head.name, f"{head.sharpness:.3f}", _list_attended(explanation, head.weights)) for head in explanation.heads
    ]
    yield Table("cross-attention by head", ("layer.head", "mean of highest", "highest weights"), heads, (1,))


def _make_prediction_table(title: str, predictions: Sequence[TokenPrediction]) -> Table:
    rows = [
        (
            str(number),
            label_piece(prediction.piece),
            format_probability(prediction.probability),
            f"{prediction.entropy:.2f}",
            str(prediction.rank),
            "  ".join(
                f"{label_piece(other.piece)} {format_probability(other.probability)}"
                for other in prediction.alternatives[:N_ALTERNATIVES]
            ),
        )
        for number, prediction in enumerate(predictions, start=1)
    ]
    return Table(title, ("", "piece", "probability", "bits", "rank", "most likely"), rows, (0, 2, 3, 4))


def _list_attended(explanation: Explanation, weights: Sequence[float]) -> str:
    """Return the source pieces with the highest weights."""
    best = sorted(zip(weights, explanation.src_pieces, strict=True), key=lambda pair: -pair[0])[:N_ATTENDED]
    return "  ".join(f"{label_piece(piece)} {weight:.3f}" for weight, piece in best)
