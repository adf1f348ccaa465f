"""Check a sample of the training pairs at the start of each training: return warnings, refuse exchanged languages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.language_detection import EXCHANGE_REMEDY, has_exchanged_sides
from transformer_mt.data.quality.check_runner import CheckTask, make_finding, run_checks
from transformer_mt.data.quality.checks import CHECKS
from transformer_mt.data.quality.corpus_filters import MIN_LEXICON_PAIRS, UnrelatedFilter
from transformer_mt.data.quality.lexicon import Lexicon
from transformer_mt.errors import UserError
from transformer_mt.system.files import make_once, write_text
from transformer_mt.system.severity import Severity

FORMAT_VERSION = 4  # of the cached lines and of what the checks do; part of their key
N_PAIRS = 2000  # whose text is checked
MIN_AFFECTED = 10  # affected pairs of the sample; fewer may be chance
N_WINDOWS, CHECK_WINDOW = 100, 20  # windows of consecutive lines whose sides are compared
LEARNED_LENGTH = 80  # lines after each window from which the lexicon is learned
MAX_UNRELATED = 0.05  # share of the compared pairs
SAMPLE_CHECKS = [
    check for check in CHECKS if check.group == "content" and not isinstance(check.finder, UnrelatedFilter)
]


def check_sample(corpus: ParallelCorpus, languages: tuple[str, str], cache_dir: Path) -> list[str]:
    """Return a line for each warning about a sample of the pairs. The lines are cached for an unchanged corpus.

    Raises:
        UserError: Most pairs are in the languages of the other side.
    """
    key = json.dumps([FORMAT_VERSION, corpus.key, corpus.fingerprint, languages])
    path = cache_dir / f"check-{sha256(key.encode()).hexdigest()[:16]}.json"
    make_once(path, lambda: write_text(path, json.dumps([*_check_text(corpus, languages), *_check_alignment(corpus)])))
    return json.loads(path.read_text(encoding="utf-8"))


def _check_text(corpus: ParallelCorpus, languages: tuple[str, str]) -> Iterator[str]:
    sample = corpus.select_evenly(N_PAIRS)
    found = run_checks(CheckTask(sample, languages), SAMPLE_CHECKS, count_lengths=False)
    for check in SAMPLE_CHECKS:
        finding = make_finding(check, found, len(sample))
        if finding is not None and finding.count >= MIN_AFFECTED and finding.severity > Severity.OK:
            first = finding.examples[0]
            if finding.has_wrong_languages and has_exchanged_sides(sample, languages):
                raise UserError(
                    f"data.train: the source seems to be in {languages[1]} and the target in {languages[0]}, such as "
                    f"{first.location} ({first.reason});\n"
                    f"{EXCHANGE_REMEDY}; reverse: true exchanges both sides of a source"
                )
            yield (
                f"warning: {finding.share:.1%} of a sample of pairs {check.message}, such as {first.location} "
                f"({first.reason}); run tmt check"
            )


def _check_alignment(corpus: ParallelCorpus) -> Iterator[str]:
    if len(corpus) < MIN_LEXICON_PAIRS:
        return
    n_windows = min(N_WINDOWS, len(corpus) // (2 * CHECK_WINDOW))
    starts = np.linspace(0, len(corpus), n_windows, endpoint=False).astype(np.int64).tolist()
    learned: list[tuple[str, str]] = []  # lines after each window, because a lexicon knows its own training pairs
    for start, end in pairwise([*starts, len(corpus)]):
        learned += corpus.rows(start + CHECK_WINDOW, min(end, start + CHECK_WINDOW + LEARNED_LENGTH))
    lexicon = Lexicon.learn(learned)
    ratios = [
        [
            lexicon.log_likelihood_ratio(lexicon.encode(src, is_src=True), lexicon.encode(tgt, is_src=False))
            for src, tgt in corpus.rows(start, start + CHECK_WINDOW)
        ]
        for start in starts
    ]
    is_related = np.array(ratios) > 0  # [windows, lines]
    share = 1 - float(is_related.mean())
    if share > MAX_UNRELATED:
        worst = starts[int(is_related.mean(1).argmin())]
        where = corpus.describe_line(worst)
        yield f"warning: {share:.1%} of the sampled pairs are not translations, for example near {where}; run tmt check"
