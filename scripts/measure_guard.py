"""Count the faults of translations with and without the guard, on 1,000 adversarial lines and on a clean test set.

    python scripts/measure_guard.py RUN --threads 1
    python scripts/measure_guard.py RUN --threads 1 --src test.en --ref test.de

The lines are English, so RUN must translate from English. A line counts as faulty if the whole translation has a fault,
however it was split. With a test set, the time of both is measured in turns, after one pass that warms up.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import sacrebleu
from trainings import run_script
from transformer_mt.decoding.line_splitting import LineTranslator

from transformer_mt.data.text_files import has_letters, read_aligned_files
from transformer_mt.decoding.translator import ModelProvenance
from transformer_mt.tools.export.engine_choice import load_translator
from transformer_mt.tools.robustness.guard import Guard, ignore_faults

SENTENCES = [
    "The old dog is sleeping in front of the house.",
    "Two women in red coats are waiting for a train.",
    "A man is reading a book under a tree.",
    "Children play with a ball on the beach.",
    "A young girl is holding a small cat.",
    "Some people are sitting at a table and eating.",
    "A cyclist rides through the snow.",
    "My friend has bought a new guitar.",
    "Three boys jump into the water.",
    "The woman in the white shirt is smiling at the camera.",
]
EMOJI = ["😀", "🚴‍♂️", "❤️", "🇩🇪", "👍🏽", "🎉🎉", "☀", "⚽"]
LINKS = [
    "https://example.org/path?id=7&lang=en",
    "www.example.com",
    "http://shop.example.net/a-b_c.html",
    "anna.smith@example.org",
    "info@example.co.uk",
]
NUMBERS = ["2.200.112", "1,250.75", "17", "1998", "12:45", "31.12.2024", "3.5 %", "€ 99.90", "+49 30 1234567", "0.001"]
CODE = [
    "x = foo(bar, 42)",
    "git commit -m 'fix'",
    "{user_name}",
    "<br/>",
    "C:\\Users\\anna",
    "rm -rf ./build",
    "a->b[i]++",
]
FOREIGN = [
    "Собака спит перед домом.",
    "Ο σκύλος κοιμάται.",
    "狗在房子前面睡觉。",
    "犬が家の前で寝ています。",
    "الكلب نائم.",
    "개가 자고 있다.",
]
KINDS: dict[str, Callable[[random.Random, str], str]] = {
    "many sentences": lambda rng, _: " ".join(rng.choices(SENTENCES, k=rng.randint(2, 12))),
    "long without stops": lambda rng, _: " and ".join(
        one[:-1].lower() for one in rng.choices(SENTENCES, k=rng.randint(5, 20))
    ),
    "clauses": lambda rng, _: ", ".join(one[:-1].lower() for one in rng.choices(SENTENCES, k=rng.randint(3, 8))) + ".",
    "number": lambda rng, one: _insert(rng, one, rng.choice(NUMBERS)),
    "several numbers": lambda rng, one: _insert(rng, _insert(rng, one, rng.choice(NUMBERS)), str(rng.randrange(10**6))),
    "link": lambda rng, one: _insert(rng, one, rng.choice(LINKS)),
    "emoji inside": lambda rng, one: _insert(rng, one, rng.choice(EMOJI)),
    "emoji at the end": lambda rng, one: one[: rng.choice([None, -1])] + rng.choice(EMOJI),
    "capitals": lambda rng, one: one.upper(),
    "title case": lambda rng, one: one.title(),
    "no punctuation, lower case": lambda rng, one: one[:-1].lower(),
    "repeated words": lambda rng, one: one.replace(" ", " very very " if rng.random() < 0.5 else " the ", 1),
    "stutter": lambda rng, one: " ".join([one.split()[1]] * rng.randint(3, 15)),
    "dashes and bullets": lambda rng, one: (
        rng.choice(["- ", "— ", "* ", "• ", "-- ", "1. "]) + one.replace(" ", " - ", 1)
    ),
    "colon": lambda rng, one: f"{rng.choice(['Note', 'Menu', 'Q', 'Warning'])}: {one}",
    "code": lambda rng, one: _insert(rng, one, rng.choice(CODE)),
    "foreign script": lambda rng, one: rng.choice(FOREIGN) + rng.choice(["", " " + one]),
    "noise": lambda rng, one: one + " " + "".join(rng.choices("#$%&*()[]{}|~^_=+<>/", k=rng.randint(3, 20))),
    "single word": lambda rng, one: rng.choice(one[:-1].split()) + rng.choice(["", ".", "!", "?", ":"]),
    "typing errors": lambda rng, one: _misspell(rng, one),
}
N_LINES = 1000
N_ROUNDS = 3  # of the timing


def _insert(rng: random.Random, sentence: str, word: str) -> str:
    words = sentence.split()
    words.insert(rng.randint(1, len(words) - 1), word)
    return " ".join(words)


def _misspell(rng: random.Random, sentence: str) -> str:
    letters = [*sentence]
    for i in rng.sample(range(1, len(letters) - 1), 4):
        letters[i] = rng.choice("abcdefghijklmnopqrstuvwxyz")
    return "".join(letters)


def make_lines() -> list[tuple[str, str]]:
    """Return kinds and adversarial lines, always the same."""
    rng = random.Random(1)
    kinds = [*KINDS] * (N_LINES // len(KINDS))
    return [(kind, KINDS[kind](rng, rng.choice(SENTENCES))) for kind in kinds]


def translate(line_translator: LineTranslator, lines: Sequence[str]) -> list[str]:
    """Return the translations of lines."""
    found = line_translator.translate(lines, [""] * len(lines), range(1, len(lines) + 1))
    return [line.join()[0].text for line in found]


def show_faults(guard: Guard, line_translators: Sequence[LineTranslator]) -> None:
    """Print how many adversarial lines have faults without and with the guard, by kind of line and of fault."""
    lines = make_lines()
    by_kind, by_fault = [Counter[str](), Counter[str]()], [Counter[str](), Counter[str]()]
    for i, line_translator in enumerate(line_translators):
        for (kind, line), text in zip(lines, translate(line_translator, [line for _, line in lines]), strict=True):
            faults = {fault.kind for fault in guard.find_faults(line, text)} if has_letters(line) else set[str]()
            by_kind[i][kind] += bool(faults)
            by_fault[i].update(faults)
    print(f"faulty lines of {len(lines):,}: {by_kind[0].total()} without the guard, {by_kind[1].total()} with it")
    for title, (before, after) in (("line", by_kind), ("fault", by_fault)):
        print(f"\n{title:28} without  with")
        for name, count in before.most_common():
            print(f"{name:28} {count:7} {after[name]:5}")


def show_clean(guard: Guard, line_translators: Sequence[LineTranslator], src: Path, ref: Path) -> None:
    """Print false alarms on references, and BLEU, changed lines and time on a test set."""
    sources, references = read_aligned_files(src, ref)
    alarms = Counter(
        kind
        for source, reference in zip(sources, references, strict=True)
        for kind in {fault.kind for fault in guard.find_faults(source, reference)}
    )
    alarm_list = ", ".join(f"{kind}: {count}" for kind, count in alarms.items())
    print(f"\nalarms in {len(sources):,} references: {alarm_list or 'none'}")
    without, with_guard = (translate(each, sources) for each in line_translators)
    seconds: list[list[float]] = [[], []]
    for _ in range(N_ROUNDS):
        for i, line_translator in enumerate(line_translators):
            start = time.process_time()
            translate(line_translator, sources)
            seconds[i].append(time.process_time() - start)
    ratios = [after / before for before, after in zip(*seconds, strict=True)]
    bleu = [sacrebleu.corpus_bleu(texts, [references]).score for texts in (without, with_guard)]
    n_changed = sum(map(str.__ne__, without, with_guard))
    print(f"BLEU: {bleu[0]:.2f} without the guard, {bleu[1]:.2f} with it; changed lines: {n_changed}")
    spread = f"{min(ratios):.3f} to {max(ratios):.3f} in {N_ROUNDS} turns"
    print(f"time with the guard, divided by that without: {statistics.median(ratios):.3f} ({spread})")


def main() -> None:
    """Measure one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--src", type=Path)
    parser.add_argument("--ref", type=Path)
    args = parser.parse_args()
    if (args.src is None) != (args.ref is None):
        parser.error("--src and --ref belong together")
    translator = load_translator(args.run, threads=args.threads, engine=args.engine, scores=False)
    provenance = ModelProvenance.of_translator(translator)
    guard = Guard.make(provenance, translator.config, ignore_faults)
    if guard is None:
        parser.error(f"{args.run}: decoding.guard is false")
    line_translators = [LineTranslator.make(translator, provenance, review=review) for review in (None, guard)]
    show_faults(guard, line_translators)
    print(guard.describe())
    if args.src:
        show_clean(guard, line_translators, args.src, args.ref)


if __name__ == "__main__":
    run_script(main)
