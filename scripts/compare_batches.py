"""Show how often the translation of a sentence depends on the other sentences of its batch.

    python scripts/compare_batches.py RUN --src F [--threads N]

Each line is translated in one call, in calls of 1, 7 and 64 lines, and shuffled in calls of 200; with beams of 1 and 5;
in fp32 and in bf16. The script counts lines whose translation differs from that of the one call. It also prints the
largest difference between the log-probabilities per token of the two translations, scored in fp32. A small difference
means that the model has almost no preference.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from trainings import run_script

from transformer_mt.data.text_files import read_lines
from transformer_mt.decoding.translator import Translation, Translator

BEAMS = (1, 5)
CALLS = {"calls of 1": 1, "calls of 7": 7, "calls of 64": 64, "shuffled, calls of 200": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--src", type=Path, required=True, help="sentences to translate")
    parser.add_argument("--threads", default="auto", help="CPU threads (default: one per core)")
    args = parser.parse_args()
    texts = list(read_lines(args.src))
    scorer = Translator.load(args.run, threads=args.threads, precision="fp32")
    for precision in ("fp32", "bf16"):
        translator = Translator.load(args.run, threads=args.threads, precision=precision)
        for beam in BEAMS:
            wanted = translator.translate(texts, beam=beam)
            for name, size in CALLS.items():
                found = in_calls(translator, texts, size, beam, is_shuffled="shuffled" in name)
                others = [i for i, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other]
                gaps = differences(scorer, *([lines[i] for i in others] for lines in (texts, found, wanted)))
                print(
                    f"{precision}  beam {beam}  {name:22}  {len(others)} of {len(texts):,} differ"
                    + (f", by at most {max(gaps):.4f} per token" if gaps else ""),
                    flush=True,
                )


def in_calls(translator: Translator, texts: Sequence[str], size: int, beam: int, *, is_shuffled: bool) -> list[str]:
    """Translate in calls of `size` texts. Return translations in the order of the texts."""
    order = list(range(len(texts)))
    if is_shuffled:
        random.Random(1).shuffle(order)
    found = [""] * len(texts)
    for start in range(0, len(texts), size):
        part = order[start : start + size]
        for i, text in zip(part, translator.translate([texts[i] for i in part], beam=beam), strict=True):
            found[i] = text
    return found


def differences(scorer: Translator, texts: Sequence[str], found: Sequence[str], wanted: Sequence[str]) -> list[float]:
    """Return the difference of the log-probabilities per token, for each pair of translations."""
    ones, others = (map(per_token, scorer.score(texts, side)) for side in (found, wanted))
    return [abs(one - other) for one, other in zip(ones, others, strict=True)]


def per_token(one: Translation) -> float:
    """Return the mean log-probability per token, without the end symbol."""
    return sum(one.token_scores[:-1]) / max(1, len(one.tokens))


if __name__ == "__main__":
    run_script(main)
