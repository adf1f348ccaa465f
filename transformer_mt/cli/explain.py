"""`tmt explain`: show how a sentence is translated, as text, JSON or an HTML page."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformer_mt import __version__
from transformer_mt.choices import AttentionKind
from transformer_mt.cli.command import Command, group, option, positional
from transformer_mt.cli.options import (
    LoadingOptions,
    SearchOptions,
    collect_overrides,
    json_flag,
    run_argument,
)
from transformer_mt.cli.table import align, print_text
from transformer_mt.errors import UserError
from transformer_mt.flows.line_input import decode_argument
from transformer_mt.flows.line_output import check_output
from transformer_mt.flows.translation import load_translator
from transformer_mt.system.files import atomic_file, write_text
from transformer_mt.system.log import format_probability, label_piece, log, make_visible

if TYPE_CHECKING:
    from transformer_mt.decoding.translator import Translator
    from transformer_mt.tools.analysis.explanation import Explanation, ReferenceExplanation, TokenPrediction

IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 80
N_ATTENDED = 3  # source pieces with the highest weights
LONGEST_BAR = 20
N_CANDIDATES = 3  # of each position of the search, in addition to finished ones and those that lead to the translation
MAX_PIECE, MAX_WORD = 12, 24  # characters of a piece or word in a table


@dataclass(frozen=True, kw_only=True)
class Explain(Command):
    """Translate one sentence by beam search, and show how.

    The command prints probabilities, alternatives and entropy of each piece, word alignment, attention, the candidates
    of the search, and the effect of each source word. The model runs once more for each source word that is left out.
    """

    EXAMPLE: ClassVar[str] = 'tmt explain runs/mine "A dog is running." --html dog.html'

    run: Path = run_argument()
    text: str = positional("one sentence", metavar="TEXT")
    reference: str | None = option(
        "compare with this translation: its probabilities, and where the search dropped it", metavar="R"
    )
    json: bool = json_flag()
    html: Path | None = option("write one HTML page without external files, instead of text", metavar="F")
    attention: Path | None = option(
        "also draw the attention weights of every layer and head (.png, .svg or .pdf)", metavar="F"
    )
    kind: AttentionKind = option(
        "attention to draw: cross (default), or the self-attention of the encoder or the decoder", default="cross"
    )
    loading: LoadingOptions = group(LoadingOptions)
    search: SearchOptions = group(SearchOptions)

    def execute(self) -> None:
        """Run `tmt explain`."""
        text = decode_argument(self.text)
        reference = None if self.reference is None else decode_argument(self.reference)
        check_output(self.html, option="--html")
        check_output(self.attention, option="--attention")
        if self.attention is not None and self.attention.suffix.lower() not in IMAGE_SUFFIXES:
            raise UserError(f"{self.attention}: the suffix sets the image format; use {', '.join(IMAGE_SUFFIXES)}")
        if self.attention is None and self.kind != "cross":
            raise UserError(f"explain: --kind {self.kind} belongs to --attention F; add it, or leave out --kind")
        from transformer_mt.tools.analysis.explanation import explain
        from transformer_mt.tools.analysis.explanation_page import find_likely_reasons

        overrides = {**collect_overrides(self.search, n_best=1), "sample": False}  # sampling has no beams
        options = self.loading.make_load_options()
        translator = load_translator(self.run, options, **{**overrides, "engine": "torch"})
        explanation = explain(translator, text, reference)
        reasons = find_likely_reasons(translator, explanation)
        if self.json:
            header = {"tmt": __version__, **_identity(translator), "decoding": translator.config.output_options()}
            print(json.dumps({**header, **asdict(explanation), "likely_reasons": reasons}, ensure_ascii=False))
        elif self.html is None:
            print_text(*format_explanation(explanation, reasons))
        sys.stdout.flush()
        if self.html is not None:
            from transformer_mt.tools.analysis.explanation_page import render_html

            subtitle = ", ".join(f"{name} {value}" for name, value in _identity(translator).items())
            write_text(self.html, render_html(explanation, reasons, f"{subtitle}, {translator.config.method}"))
            log(f"{self.html} is written")
        if self.attention is not None:
            from transformer_mt.tools.analysis.figures import save, translate_with_attention

            figure = translate_with_attention(translator, text).figure(self.kind)
            with atomic_file(self.attention.resolve()) as temporary:
                save(figure, temporary, self.attention.suffix[1:].lower())
            log(f"{self.attention} is written")


def _identity(translator: Translator) -> dict[str, object]:
    (run,) = translator.runs
    return {"run": str(run.folder.path), "step": run.step}


# --- text ------------------------------------------------------------------------------------------------------------


def format_explanation(explanation: Explanation, reasons: Sequence[str]) -> Iterator[str]:
    """Yield the lines of all sections, of at most 80 columns, with the likely reasons of a bad translation."""
    from transformer_mt.tools.analysis.explanation_page import NO_REASON

    yield from _wrap_labelled("source", explanation.source)
    yield from _wrap_labelled("pieces", " ".join(map(label_piece, explanation.src_pieces)))
    yield from _wrap_labelled("translation", explanation.translation)
    ending = "" if explanation.finished else "; cut at the maximum length"
    scores = _describe_scores(explanation.score, explanation.ranking_score)
    if f"{explanation.search_score:.4f}" != f"{explanation.score:.4f}":
        scores += f"; in the search {explanation.search_score:.4f}"
    yield from _wrap_labelled("", scores + ending)
    yield from ("", "likely reasons, if the translation is bad")
    for reason in reasons or [NO_REASON]:
        yield from textwrap.wrap(reason, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    yield from ("", "target pieces: probability, entropy in bits, rank, and the most likely pieces")
    yield from _format_predictions(explanation.predictions)
    yield from _format_words(explanation)
    yield from _format_attention(explanation)
    if explanation.reference is not None:
        yield from _format_reference(explanation.reference)
    yield from _format_search(explanation)


def _wrap_labelled(label: str, text: str) -> list[str]:
    first, rest = f"{label:<13}", " " * 13
    return textwrap.wrap(make_visible(text), WIDTH, initial_indent=first, subsequent_indent=rest) or [label]


def _describe_scores(score: float, ranking_score: float) -> str:
    return f"log-probability {score:.4f}, with length penalty {ranking_score:.4f}"


def _format_predictions(predictions: Sequence[TokenPrediction]) -> Iterator[str]:
    """Yield a line for each piece, and then the most likely ones at its position."""
    rows = [
        (
            str(number),
            _cut(label_piece(prediction.piece), MAX_WORD),
            format_probability(prediction.probability),
            f"{prediction.entropy:.2f}",
            str(prediction.rank),
        )
        for number, prediction in enumerate(predictions, start=1)
    ]
    for line, prediction in zip(_format_table(rows, [False, True, False, False, False]), predictions, strict=True):
        yield line
        pieces = "  ".join(
            f"{label_piece(other.piece)} {format_probability(other.probability)}" for other in prediction.alternatives
        )
        yield from textwrap.wrap(pieces, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _format_words(explanation: Explanation) -> Iterator[str]:
    yield from ("", "target words: source words aligned to it, probability, entropy in bits")
    rows = [
        (
            _cut(make_visible(word.word), MAX_WORD),
            _cut(make_visible(" ".join(word.source_words)), MAX_WORD),
            format_probability(word.probability),
            f"{word.entropy:.2f}",
        )
        for word in explanation.words
    ]
    yield from _format_table(rows, [True, True, False, False])
    yield from ("", "source words: change of the log-probability of the translation without it")
    rows = [
        (
            _cut(make_visible(word.word), MAX_WORD),
            f"{word.change:+.3f}",
            "#" * round(LONGEST_BAR * abs(word.change) / explanation.largest_change),
        )
        for word in explanation.left_out
    ]
    yield from _format_table(rows, [True, False, True])


def _format_attention(explanation: Explanation) -> Iterator[str]:
    """Yield the source pieces that each target piece, layer and head attends to most."""
    pieces = [_cut(label_piece(piece), MAX_PIECE) for piece in explanation.src_pieces]

    def list_most_attended(weights: Sequence[float]) -> list[str]:
        best = sorted(zip(weights, pieces, strict=True), key=lambda pair: -pair[0])[:N_ATTENDED]
        cells = [cell for weight, piece in best for cell in (piece, f"{weight:.3f}")]
        return cells + [""] * (2 * N_ATTENDED - len(cells))

    yield from ("", "cross-attention (mean of layers and heads): source pieces with most weight")
    rows = [
        (_cut(label_piece(prediction.piece), MAX_PIECE), *list_most_attended(row))
        for prediction, row in zip(explanation.predictions, explanation.mean_attention, strict=True)
    ]
    yield from _format_table(rows, [True] * 7)
    yield from ("", "cross-attention by layer and head: mean of the highest weight of each target")
    yield "piece, and source pieces with most weight"
    rows = [(head.name, f"{head.sharpness:.3f}", *list_most_attended(head.weights)) for head in explanation.heads]
    yield from _format_table(rows, [True] * 8)


def _format_search(explanation: Explanation) -> Iterator[str]:
    yield from ("", "search: log-probability and pieces of the best candidates of each position")
    yield "(* leads to the translation). Its scores may differ: the search rounds"
    yield "differently, and applies penalties."
    path = {*explanation.search_path}
    for position, branches in enumerate(explanation.search):
        yield f"  position {position + 1}"
        for rank, branch in enumerate(branches):
            is_on_path = (position, rank) in path
            if rank >= N_CANDIDATES and branch.status not in ("finished", "cut") and not is_on_path:
                continue
            start = f"  {'*' if is_on_path else ' '} {branch.status:<8} {branch.score:9.4f}  "
            text = " ".join(map(label_piece, explanation.list_search_pieces(position, rank)))
            yield start + (text if len(start + text) <= WIDTH else f"…{text[len(start) + 1 - WIDTH :]}")


def _format_reference(reference: ReferenceExplanation) -> Iterator[str]:
    yield ""
    yield from _wrap_labelled("reference", reference.text)
    yield from _wrap_labelled("", _describe_scores(reference.score, reference.ranking_score))
    yield from _format_predictions(reference.predictions)
    yield from (line for sentence in reference.description for line in textwrap.wrap(sentence, WIDTH))


def _format_table(rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> list[str]:
    return [f"  {line}" for line in align(rows, is_text)] if rows else []


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
