"""Measure the guarantee for protected elements: survival, quality, placement and time.

    python scripts/measure_markup.py RUN --src F --ref G --train-src A --train-tgt B [--sentences N] [--modes MODE ...]

The sentences of F, repeated, get 1 to 12 elements at random: pairs of tags around words, and placeholders, links and
empty tags between words. Printed for each search and mode:

    survival    share of sentences whose translation has each element exactly once
    nesting     share of sentences in which each element is also inside its parent
    BLEU        of the translations of F with elements, after these are removed, and without elements
    placement   F1 of the words inside tags: a word belongs into the tags that enclose the source word from which it
                is translated, by a lexicon that is learned from the training text
    seconds     time of the translation of all sentences

The baseline `sentinel` replaces each element by a word (XA, XB, ...), translates, and puts the elements back where the
words are.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sacrebleu
from trainings import positive_int, run_script

from transformer_mt.decoding.translator import Translator
from transformer_mt.tools.markup.elements import MarkedText, Role
from transformer_mt.tools.markup.placement import remove_elements
from transformer_mt.tools.markup.protection import Protector
from transformer_mt.tools.markup.stages import get_marked_text, make_stages
from transformer_mt.tools.quality.lexicon import Lexicon

SINGLES = ("{name}", "{0}", "%s", "<br/>", "https://example.org/a", "info@example.org", "main.py")
TAGS = ("b", "i", "u", "a", "span")
SEARCHES: dict[str, dict[str, Any]] = {"greedy": {"beam": 1}, "beam 5": {"beam": 5}, "sampling": {"sample": True}}
LINK = 0.1  # least probability of a word given the source word that it is translated from
MARK = Protector(("tags", "placeholders", "urls", "emails", "files")).mark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    for name in ("src", "ref", "train-src", "train-tgt"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--sentences", type=positive_int, default=10_000)
    parser.add_argument("--modes", nargs="+", default=["sentinel", "align"])
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=[*SEARCHES])
    parser.add_argument("--threads", type=positive_int, default=1)
    args = parser.parse_args()
    sources, references, *training = (
        path.read_text(encoding="utf-8").splitlines() for path in (args.src, args.ref, args.train_src, args.train_tgt)
    )
    lexicon = Lexicon.learn([*zip(*training, strict=True)])
    translator = Translator.load(args.run, threads=args.threads, make_stages=make_stages)
    rng = random.Random(1)
    texts = [add_elements(sources[i % len(sources)], rng) for i in range(args.sentences)]
    columns = ("mode", "survival", "nesting", "BLEU", "plain", "placement", "seconds")
    print(f"{'search':10}", *(f"{column:>9}" for column in columns))
    for search in args.searches:
        plain = bleu(translator.translate(sources, **SEARCHES[search]), references)
        for mode in args.modes:
            start = time.monotonic()
            outputs = translate(translator, texts, mode, SEARCHES[search])
            seconds = time.monotonic() - start
            marked = [MARK(text) for text in texts]
            survival = [survives(output, source) for output, source in zip(outputs, marked, strict=True)]
            nesting = [
                has_survived and output.has_elements_of(source)
                for has_survived, output, source in zip(survival, outputs, marked, strict=True)
            ]
            n = len(sources)
            stripped = bleu([remove_elements(output) for output in outputs[:n]], references[: len(outputs)])
            f1 = placement([*zip(marked, outputs, strict=True)], lexicon)
            numbers = [f"{stripped:.2f}", f"{plain:.2f}", f"{f1:.3f}", f"{seconds:.1f}"]
            cells = [mode, f"{mean(survival):.2%}", f"{mean(nesting):.2%}", *numbers]
            print(f"{search:10}", *(f"{cell:>9}" for cell in cells), flush=True)


def add_elements(sentence: str, rng: random.Random) -> str:
    """Return a sentence with 1 to 12 elements, whose tags are nested."""
    words = sentence.split()
    wanted = rng.randint(1, 12)
    before: list[list[str]] = [[] for _ in range(len(words) + 1)]
    spans: list[tuple[int, int]] = []
    while wanted > 0:
        start, end = sorted((rng.randrange(len(words)), rng.randrange(len(words))))
        crosses = any(start < s <= end < e or s < start <= e < end for s, e in spans) or (start, end) in spans
        if wanted >= 2 and rng.random() < 0.5 and not crosses:
            spans.append((start, end))
            wanted -= 2
        else:
            before[rng.randrange(len(words) + 1)].append(rng.choice(SINGLES))
            wanted -= 1
    opening, closing = [""] * len(words), [""] * len(words)
    for number, (start, end) in enumerate(sorted(spans, key=lambda span: span[0] - span[1])):
        tag = TAGS[number % len(TAGS)]
        opening[start] += f"<{tag}>"
        closing[end] = f"</{tag}>" + closing[end]
    tagged = [f"{opening[i]}{word}{closing[i]}" for i, word in enumerate(words)]
    return " ".join(part for i in range(len(words) + 1) for part in [*before[i], *tagged[i : i + 1]])


def translate(translator: Translator, texts: Sequence[str], mode: str, search: dict[str, Any]) -> list[MarkedText]:
    """Return the translations as text with elements, numbered as in the source where they are found."""
    if mode != "sentinel":
        return [get_marked_text(best) for best, *_ in translator.n_best(texts, markup=mode, **search, n_best=1)]
    marked = [MARK(text) for text in texts]
    masked = [" ".join(p if isinstance(p, str) else sentinel(p) for p in text.parts) for text in marked]
    outputs = translator.translate([" ".join(text.split()) for text in masked], **search)
    return [put_back(output, source) for output, source in zip(outputs, marked, strict=True)]


def sentinel(index: int) -> str:
    """Return the word that represents an element."""
    return f"X{chr(ord('A') + index)}"


def put_back(output: str, source: MarkedText) -> MarkedText:
    """Replace the sentinel words of a translation by the elements of its source."""
    index = {sentinel(i): i for i in range(len(source.elements))}
    parts = [index.get(part, part) for part in re.split(r"\b(X[A-Z])\b", output)]
    return MarkedText.make(parts, source.elements)


def survives(output: MarkedText, source: MarkedText) -> bool:
    """Return whether each element occurs exactly once."""
    return sorted(output.order) == [*range(len(source.elements))]


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU of sacreBLEU."""
    return sacrebleu.corpus_bleu(translations, [references]).score


def placement(pairs: Sequence[tuple[MarkedText, MarkedText]], lexicon: Lexicon) -> float:
    """Return the F1 of target words inside tags, counted for each pair of tags."""
    n_both = n_inside = n_expected = 0
    for source, output in pairs:
        src_words, tgt_words = words_in_tags(source), words_in_tags(output)
        for word, inside in tgt_words:
            column = lexicon.tgt_ids.get(word)
            if column is None:
                continue
            scored = [
                (float(lexicon.probabilities[row, column]), tags)
                for src, tags in src_words
                if (row := lexicon.src_ids.get(src)) is not None
            ]
            probability, expected = max(scored, key=lambda each: each[0], default=(0.0, frozenset[int]()))
            if probability >= LINK:
                n_both += len(inside & expected)
                n_inside += len(inside)
                n_expected += len(expected)
    return 2 * n_both / max(1, n_inside + n_expected)


def words_in_tags(text: MarkedText) -> list[tuple[str, frozenset[int]]]:
    """Return the words of a text, each with the opening tags that enclose it."""
    words: list[tuple[str, frozenset[int]]] = []
    inside: set[int] = set()
    for part in text.parts:
        if isinstance(part, str):
            words += [(word, frozenset(inside)) for word in re.findall(r"\w+", part.casefold())]
        elif text.elements[part].role is Role.OPENING:
            inside.add(part)
        elif text.elements[part].role is Role.CLOSING:
            inside -= {text.elements[part].partner}
    return words


def mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    run_script(main)
