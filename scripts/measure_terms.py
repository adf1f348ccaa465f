"""Measure a glossary: term use, BLEU and time, with it and without it.

Terms are nouns of the test set with the forms that they have in its references, by word correspondences (Dice
coefficient) in the training text. A term is left out if some reference has another word. Further nouns of the
training text fill up the glossary. The target language must be German, whose nouns have capitals.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sacrebleu

from transformer_mt.data.text_files import read_aligned_files
from transformer_mt.decoding.translator import Translator
from transformer_mt.tools.markup.elements import MarkedText
from transformer_mt.tools.markup.glossary import Glossary
from transformer_mt.tools.markup.stages import make_stages

MIN_DICE = 0.3
_WORD = re.compile(r"\w{3,}")

Pairs = Iterable[tuple[str, str]]


def find_nouns(pairs: Pairs) -> dict[str, str]:
    """Return the noun that corresponds best to each source word."""
    sources, targets, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for source, target in pairs:
        words = {*_WORD.findall(source.lower())}
        nouns = {word for word in _WORD.findall(target)[1:] if word[0].isupper()}
        sources.update(words)
        targets.update(nouns)
        both.update((word, noun) for word in words for noun in nouns)
    best: dict[str, tuple[float, str]] = {}
    for (word, noun), n in both.items():
        dice = 2 * n / (sources[word] + targets[noun])
        if n > 1 and dice >= MIN_DICE:
            best[word] = max(best.get(word, (0.0, "")), (dice, noun))
    return {word: noun for word, (_, noun) in best.items()}


def make_terms(nouns: dict[str, str], test: Pairs, size: int) -> tuple[dict[str, list[str]], int]:
    """Return terms with their variants, and how many of them are terms of the test set."""
    references: dict[str, list[set[str]]] = {}
    for source, reference in test:
        for word in {*_WORD.findall(source.lower())} & nouns.keys():
            references.setdefault(word, []).append({*_WORD.findall(reference)})
    terms: dict[str, list[str]] = {}
    for word, found in references.items():
        noun = nouns[word]
        stem = noun[: max(3, len(noun) - 2)]
        forms = Counter(
            form for words in found for form in words if form.startswith(stem) and len(form) <= len(noun) + 2
        )
        if all(words & forms.keys() for words in found):
            terms[word] = [form for form, _ in forms.most_common()]
    n_of_test = len(terms)
    others = [word for word in nouns if word not in references]
    return terms | {word: [nouns[word]] for word in others[: max(0, size - n_of_test)]}, n_of_test


def measure(
    translator: Translator, pairs: Sequence[tuple[str, str]], terms: Glossary, options: dict[str, Any]
) -> tuple[float, str]:
    """Return the CPU seconds of a translation with one thread, and its figures."""
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    start = time.process_time()
    translations = translator.translate(sources, **options)
    seconds = time.process_time() - start
    counts = [
        terms.count_used(*(MarkedText.make([text], ()) for text in pair))
        for pair in zip(sources, translations, strict=True)
    ]
    used, needed = (sum(column) for column in zip(*counts, strict=True))
    bleu = sacrebleu.corpus_bleu(translations, [references]).score
    return seconds, f"BLEU {bleu:.2f}, terms used: {used:,} of {needed:,} ({100 * used / needed:.2f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--train", type=Path, nargs=2, metavar=("SRC", "TGT"), required=True)
    parser.add_argument("--test", type=Path, nargs=2, metavar=("SRC", "REF"), required=True)
    parser.add_argument("--size", type=int, default=1000, help="terms of the glossary (1000)")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each time; the shortest is printed (2)")
    args = parser.parse_args()
    test = [*zip(*read_aligned_files(*args.test), strict=True)]
    terms, n_of_test = make_terms(find_nouns(zip(*read_aligned_files(*args.train), strict=True)), test, args.size)
    translator = Translator.load(args.run, device="cpu", threads=1, precision="fp32", make_stages=make_stages)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "terms.tsv"
        path.write_text("".join(f"{term}\t{'|'.join(forms)}\n" for term, forms in terms.items()), encoding="utf-8")
        glossary = Glossary.read(path)
        modes: dict[str, dict[str, Any]] = {"without": {"glossary": None}, "with": {"glossary": str(path)}}
        n_hit = sum(any(glossary.find(source)) for source, _ in test)
        print(f"{len(terms):,} terms, {n_of_test:,} of the test set; {n_hit:,} of {len(test):,} sentences have one")
        seconds = dict.fromkeys(modes, float("inf"))
        figures: dict[str, str] = {}
        for _ in range(args.rounds):
            for mode, options in modes.items():
                taken, figures[mode] = measure(translator, test, glossary, options)
                seconds[mode] = min(seconds[mode], taken)
        for mode, text in figures.items():
            print(f"{mode}: {text}, {seconds[mode]:.1f} s ({100 * (seconds[mode] / seconds['without'] - 1):+.0f} %)")


if __name__ == "__main__":
    main()
