"""Checks of training pairs. Each has thresholds for warning and error, and a remedy.

`check_pairs` applies all checks for `tmt check`. At the start of a training, `describe_duplicates_and_overlap` and
`check_sample` apply some of them. They run in the pipeline of the filters of `data.filters`, and many are such a filter
with its defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import Field

from transformer_mt.data.corpus import PairExample, ParallelCorpus
from transformer_mt.data.stages import Runner, Stage, TaskMetadata
from transformer_mt.errors import UserError
from transformer_mt.system.files import build_cached, write_text
from transformer_mt.system.log import Severity
from transformer_mt.tools.languages.detection import SWAP_REMEDY, describe_swapped_corpus
from transformer_mt.tools.quality import signals
from transformer_mt.tools.quality.corpus_filters import MIN_LEXICON_PAIRS, UnrelatedFilter
from transformer_mt.tools.quality.filter_base import SIDE_NAMES, Block, Filter, FilterContext, PairFilter
from transformer_mt.tools.quality.filter_pipeline import PairSample, ShardFilters, find_pairs, merge_examples
from transformer_mt.tools.quality.lexicon import Lexicon
from transformer_mt.tools.quality.line_alignment import LineRange
from transformer_mt.tools.quality.quality_config import make_filter

TOKENIZED_SHARE = 0.3  # of lines with tokens, from which on a text is tokenized
TABS_SHARE = 0.5  # of lines with tabs, from which on a text is a table
NEVER = 2.0  # as a share: no number of pairs has this severity


class CorpusCheck(NamedTuple):
    """A problem that pairs can have, and the shares of the pairs from which it is a warning or an error."""

    name: str
    message: str  # completes "1,234 pairs ..."
    remedy: str  # item of `data.filters`, as YAML, or advice in words; "": none
    warning_share: float
    error_share: float = NEVER
    find_in_side: Callable[[str], object] | None = None  # returns something true if a side has the problem
    filter: Filter | None = None  # finds the pairs; if this and `find_in_side` are None, `remedy` names the filter
    compares_sides: bool = False  # skipped in misaligned ranges, where it would find every line
    group: str = "content"
    min_share: float = 0.0  # below which it is no finding

    def make_filter(self) -> Filter:
        """Return the filter that finds the pairs."""
        if self.find_in_side is not None:
            return FunctionFilter(reason_of=partial(_name_sides, self.find_in_side))
        return self.filter or make_filter(self.remedy)


class FunctionFilter(PairFilter):
    """A filter that is a function of source and target, for checks that are no filter of `data.filters`."""

    kind = "function"

    reason_of: Callable[[str, str], str | None] = Field(exclude=True)  # keys of caches are JSON

    def find_reason(self, src: str, tgt: str) -> str | None:
        """Apply the function."""
        return self.reason_of(src, tgt)


def _name_sides(find: Callable[[str], object], src: str, tgt: str) -> str | None:
    """Return the names of the sides in which `find` finds something."""
    return " and ".join(name for name, text in zip(SIDE_NAMES, (src, tgt), strict=True) if find(text)) or None


def _is_blank(text: str) -> bool:
    return not text.strip()


_DROP_TAGS = r"regex: {drop: '(?i)</?[a-z][^<>]*>'}"
"""Short enough to paste. Unlike the check, it also drops placeholders, and text between `<` and `>`."""

CONTENT_CHECKS = [
    CorpusCheck("empty", "have an empty side", "length", 0.01, 0.2, find_in_side=_is_blank),
    CorpusCheck(
        # a statistic: of correct pairs, it finds 0.1 to 2 % of Multi30k and 2 to 22 % of messages of programs; of
        # shuffled ones, 42 to 83 %
        "unrelated",
        "have sides that may not be translations of each other",
        "unrelated",
        0.3,
        0.4,
        compares_sides=True,
    ),
    CorpusCheck("language", "have a side in another language", "language", 0.005, 0.2),
    CorpusCheck("script", "have a side in another script", "script", 0.005, 0.2),
    CorpusCheck("copy", "were not translated", "copy", 0.01, 0.2),
    CorpusCheck("length", "have more than 200 words", "length: {max: 200}", 0.001, filter=make_filter("length", min=0)),
    CorpusCheck("ratio", "have one side much longer than the other", "ratio", 0.01, 0.2, compares_sides=True),
    CorpusCheck("numbers", "have different numbers", "numbers", 0.01, 0.2, compares_sides=True),
    CorpusCheck("urls", "have a URL or e-mail address on one side only", "urls", 0.01, compares_sides=True),
    CorpusCheck("repetition", "repeat words or phrases", "repetition", 0.005),
    CorpusCheck(
        "mojibake",
        "were decoded with a wrong encoding",
        "normalize: {mojibake: true}",
        0.001,
        0.2,
        find_in_side=signals.has_mojibake,
    ),
    CorpusCheck(
        "stray characters",
        "have control or invisible characters or line separators, or are not in NFC",
        "normalize",
        0.01,
        find_in_side=signals.has_stray_characters,
    ),
    CorpusCheck(
        "replacement characters",
        "have the replacement character (U+FFFD), so an encoding was wrong",
        r"regex: {drop: '\uFFFD'}",
        0.001,
        0.2,
        find_in_side=re.compile("\ufffd").search,
    ),
    CorpusCheck("html", "have HTML tags", _DROP_TAGS, 0.001, find_in_side=signals.find_html_tags),
    CorpusCheck(
        "HTML entities",
        "have HTML entities, such as &quot;",
        "normalize: {html_entities: true}",
        0.001,
        find_in_side=signals.has_html_entities,
    ),
]
PREPROCESSING_CHECKS = [
    CorpusCheck(
        "columns",
        "have a tab, as rows of a table do",
        "keep the column of the sentences, e.g. with cut -f 2, or pass a table (.tsv)",
        TABS_SHARE,
        find_in_side=re.compile("\t").search,
        min_share=TABS_SHARE,
    ),
    CorpusCheck(
        "CSV quotes",
        "have the quotes of a CSV field around and in their text",
        "remove them; if the pairs are in a .tsv table, rename it to .csv, and they are removed",
        0.001,
        find_in_side=signals.has_csv_quotes,
        min_share=0.001,
    ),
    CorpusCheck(
        "tokenized",
        "are tokenized: translations will have their spaces or subword markers, too",
        "take the original text, or detokenize it, e.g. with sacremoses -l LANGUAGE detokenize",
        TOKENIZED_SHARE,
        find_in_side=signals.is_tokenized,
        min_share=TOKENIZED_SHARE,
    ),
    CorpusCheck(
        "lower case",
        "have no capitals, and neither will translations",
        "take the original text, or set tokenizer.normalization: [lowercase], so that users may type capitals",
        NEVER,
        find_in_side=signals.is_lower_case,
        min_share=0.95,
    ),
]
CHECKS = [
    *CONTENT_CHECKS,
    *PREPROCESSING_CHECKS,
    CorpusCheck("held-out text", "are in the validation or a test set", "overlap", 0.001, 0.1, group="overlap"),
    CorpusCheck(
        "near held-out text",
        "are similar to text of the validation or a test set",
        "near_overlap",
        0.01,
        group="overlap",
    ),
    CorpusCheck("pair", "repeat an earlier pair", "duplicate", 0.1, group="duplicates"),
    CorpusCheck("near pair", "are similar to another pair", "near_duplicate", 0.1, group="duplicates"),
    *(
        CorpusCheck(
            name,
            f"repeat an earlier {name}",
            f"duplicate: {{of: {of}}}",
            0.5,
            filter=make_filter("duplicate", of=of),
            group="duplicates",
        )
        for name, of in zip(SIDE_NAMES, ("src", "tgt"), strict=True)
    ),
]
SEVERAL_SOURCES_CHECK = CorpusCheck(
    "pair across sources",
    "repeat an earlier pair, also of another source",
    "keep them in one source; the filter duplicate compares only pairs of the same source",
    0.1,
    filter=make_filter("duplicate"),
    group="duplicates",
)
TRAINING_CHECKS = [
    CorpusCheck("pair", "repeat an earlier pair", "duplicate", NEVER),
    CorpusCheck(
        "held-out text",
        "have the source of a validation or test pair, which raises the scores of that set",
        "",
        0.0,
        filter=make_filter("overlap", of="src"),
        group="overlap",
    ),
]
SAMPLE_CHECKS = [check for check in (*CONTENT_CHECKS, *PREPROCESSING_CHECKS) if check.name != "unrelated"]


# --- findings ---------------------------------------------------------------------------------------------------------

LABELS = {Severity.OK: "info", Severity.WARNING: "warning", Severity.ERROR: "error"}
MAX_FOREIGN_SHARE = 0.5  # of the pairs; with more in other languages, the configured languages are wrong
WRONG_LANGUAGES = "not ready to train: data.src_lang and data.tgt_lang do not fit the text; swap or correct them"
VERDICTS = {
    Severity.OK: "ready to train; findings marked info need no action",
    Severity.WARNING: "ready to train, but look at the warnings first: they may cost quality",
    Severity.ERROR: "not ready to train: repair the errors first, because they spoil the training",
}
OVERLAP_VERDICT = "ready to train, but remove overlap with held-out text first (data.filters): it makes scores too high"
"""In place of the verdict `OK`."""
OVERLAP_ADVICE = "; always remove overlap with held-out text (data.filters): it makes scores too high"


@dataclass(frozen=True)
class Finding:
    """A problem of the corpora, with the number of pairs that have it."""

    group: str  # "alignment", "duplicates", "overlap", "content"
    name: str  # such as "empty" or "mojibake"
    severity: Severity
    message: str  # completes `1,234 pairs ...`, or describes the lines that are counted
    count: int  # affected pairs or lines
    total: int  # of which `count` are affected
    examples: Sequence[PairExample] = ()  # at most 100
    remedy: str = ""  # item of `data.filters` that removes or repairs it, as YAML; or advice
    can_be_realigned: bool = False  # whether `tmt check --write` pairs these lines again; not for held-out text

    @property
    def share(self) -> float:
        """Return `count / total`."""
        return self.count / max(1, self.total)

    @property
    def has_wrong_languages(self) -> bool:
        """Return whether the languages of the configuration are wrong, because most pairs are in others."""
        return self.name == "language" and self.share > MAX_FOREIGN_SHARE


@dataclass(frozen=True)
class CorpusReport:
    """All findings about the corpora of a configuration."""

    name: str
    sizes: Mapping[str, int]  # pairs of train, validation and the test sets
    findings: Sequence[Finding]  # the most severe first

    @property
    def severity(self) -> Severity:
        """Return the highest severity."""
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    @property
    def has_wrong_languages(self) -> bool:
        """Return whether the languages of a source are wrong."""
        return any(finding.has_wrong_languages for finding in self.findings)

    @property
    def verdict(self) -> str:
        """Return what the findings mean for a training."""
        if self.has_wrong_languages:
            return WRONG_LANGUAGES
        if not self.findings:
            return "ready to train"
        has_overlap = any(finding.group == "overlap" for finding in self.findings)
        if not has_overlap:
            return VERDICTS[self.severity]
        return OVERLAP_VERDICT if self.severity is Severity.OK else VERDICTS[self.severity] + OVERLAP_ADVICE


# --- all pairs of a corpus --------------------------------------------------------------------------------------------


def check_pairs(
    corpus: ParallelCorpus,
    languages: tuple[str, str],
    held_out: Mapping[str, ParallelCorpus],
    misaligned: Sequence[LineRange],
    cache_dir: Path,
    runner: Runner,
    checks: Sequence[CorpusCheck] = CHECKS,
) -> list[Finding]:
    """Apply checks to all pairs, each independently, shard by shard.

    The checks that compare both sides leave out the ranges `misaligned`.
    """
    context = FilterContext(corpus, languages, held_out, skip_inapplicable=True)
    filters = [check.make_filter() for check in checks]
    held_out_keys = [[name, other.key, other.fingerprint] for name, other in held_out.items()]
    states = [
        [check.name, filter_.model_dump(mode="json"), filter_.external_state()]
        for check, filter_ in zip(checks, filters, strict=True)
    ]
    key = [FORMAT_VERSION, corpus.key, corpus.fingerprint, languages, held_out_keys, misaligned, states]
    stage = Stage(
        "check", cache_dir, key, len(corpus.shards), _CheckTask([], [], ShardFilters(corpus, context, [], []))
    )
    if not stage.is_complete():
        found = find_pairs(corpus, context, filters, cache_dir, runner)
        shard_filters = ShardFilters(corpus, context, filters, found, removes=False)
        stage = replace(stage, run=_CheckTask(checks, misaligned, shard_filters))
    results = [metadata for _, metadata in runner(stage)]
    findings = _make_findings(checks, [metadata["affected"] for metadata in results], len(corpus))
    if (foreign := findings.get("language")) and foreign.severity is Severity.ERROR:
        message = f"{foreign.message}; are data.src_lang and data.tgt_lang right, or swapped?"
        findings["language"] = replace(foreign, message=message)
        if foreign.has_wrong_languages:
            is_swapped = describe_swapped_corpus(corpus, languages)
            remedy = SWAP_REMEDY if is_swapped else "correct src_lang and tgt_lang"
            findings["language"] = replace(foreign, message=message, remedy=remedy)
    return [*findings.values()]


def describe_duplicates_and_overlap(
    train: ParallelCorpus,
    languages: tuple[str, str],
    held_out: Mapping[str, ParallelCorpus],
    cache_dir: Path,
    runner: Runner,
) -> Iterator[str]:
    """Yield sentences about repeated training pairs, and about training pairs with held-out sources."""
    n_held_out = sum(map(len, held_out.values()))
    for finding in check_pairs(train, languages, held_out, (), cache_dir, runner, TRAINING_CHECKS):
        prefix, example = "warning: " if finding.severity else "", finding.examples[0]
        leak = f"; the held-out sets have {n_held_out:,} pairs" if finding.group == "overlap" else ""
        count = f"{finding.count:,} training pairs ({finding.share:.1%}{leak})"
        yield f"{prefix}{count} {finding.message}; the first: {example.location} ({example.reason})"


@dataclass(frozen=True)
class _CheckTask:
    """Task: apply checks to a shard."""

    checks: Sequence[CorpusCheck]
    misaligned: Sequence[LineRange]
    filters: ShardFilters

    def __call__(self, task: int, folder: Path) -> TaskMetadata:
        """Return number and examples of the pairs that each check finds."""
        samples = self.filters.make_samples()
        for _ in self.filters.apply(task, partial(self._observe, samples)):
            pass
        return {"affected": [(sample.count, sample.examples) for sample in samples]}

    def _observe(self, samples: Sequence[PairSample], number: int, block: Block, reasons: Mapping[int, str]) -> None:
        if self.checks[number].compares_sides and self.misaligned:
            ranges = self.misaligned
            reasons = {
                i: reason
                for i, reason in reasons.items()
                if not any(each.first <= block.rows[i] < each.end for each in ranges)
            }
        samples[number].add(block, reasons)


Affected = Sequence[tuple[int, Sequence[PairExample]]]
"""Number and examples of the pairs of a shard that each check has found."""


def _make_findings(checks: Sequence[CorpusCheck], affected: Sequence[Affected], n_pairs: int) -> dict[str, Finding]:
    """Return the findings by name, in the order of the checks."""
    findings: dict[str, Finding] = {}
    for check, *of_shards in zip(checks, *affected, strict=True):
        count = sum(found for found, _ in of_shards)
        share = count / max(1, n_pairs)
        if count and share >= check.min_share:
            severity = Severity.WARNING if share >= check.warning_share else Severity.OK
            severity = Severity.ERROR if share >= check.error_share else severity
            examples = merge_examples([found for _, found in of_shards])
            details = check.message, count, n_pairs, examples, check.remedy
            findings[check.name] = Finding(check.group, check.name, severity, *details)
    return findings


# --- a sample at the start of a training ------------------------------------------------------------------------------

FORMAT_VERSION = 14  # of the cached findings and of what the checks do; part of their key
N_PAIRS = 2000  # whose text is checked
MIN_AFFECTED = 10  # affected pairs of the sample; fewer may be chance
N_WINDOWS, CHECK_WINDOW = 100, 20  # windows of consecutive lines whose sides are compared
LEARNED_LENGTH = 80  # lines after each window from which the lexicon is learned
MAX_UNRELATED = 0.3  # share of the compared pairs; correct pairs reach 0.23
OUTLIER, MAX_OUTLIERS = 0.4, 0.06  # share of a window above the median, and share of such windows in a correct corpus


def check_sample(corpus: ParallelCorpus, languages: tuple[str, str], cache_dir: Path) -> list[str]:
    """Return a line for each warning about a sample of the pairs. The lines are cached for an unchanged corpus.

    Raises `UserError` if most pairs are in the languages of the other side.
    """
    key = json.dumps([FORMAT_VERSION, corpus.key, corpus.fingerprint, languages])
    path = cache_dir / f"check-{sha256(key.encode()).hexdigest()[:16]}.json"

    def read() -> list[str] | None:
        with suppress(FileNotFoundError, ValueError):  # a truncated file is written again
            return json.loads(path.read_text(encoding="utf-8"))

    def make() -> None:
        write_text(path, json.dumps([*_check_text(corpus, languages), *_check_alignment(corpus)]))

    build_cached(path, make, lambda: read() is not None)
    return read() or []


def _check_text(corpus: ParallelCorpus, languages: tuple[str, str]) -> Iterator[str]:
    sample = corpus.select_evenly(N_PAIRS)
    context = FilterContext(sample, languages, {}, skip_inapplicable=True)
    filters = [check.make_filter() for check in SAMPLE_CHECKS]
    check = _CheckTask(SAMPLE_CHECKS, (), ShardFilters(sample, context, filters, [None] * len(filters), removes=False))
    affected = [check(shard, Path())["affected"] for shard in range(len(sample.shards))]
    for finding in _make_findings(SAMPLE_CHECKS, affected, len(sample)).values():
        if finding.count >= MIN_AFFECTED and finding.severity > Severity.OK:
            first = finding.examples[0]
            if finding.has_wrong_languages and (problem := describe_swapped_corpus(sample, languages)):
                raise UserError(f"data.train: {problem}, such as {first.location} ({first.reason});\n{SWAP_REMEDY}")
            yield (
                f"warning: {finding.share:.1%} of a sample of pairs {finding.message}, such as {first.location} "
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
        [lexicon.log_likelihood_ratio_per_word(*pair) for pair in corpus.rows(start, start + CHECK_WINDOW)]
        for start in starts
    ]
    unrelated = np.mean(np.array(ratios) < UnrelatedFilter().min, 1)  # [windows]
    share = float(unrelated.mean())
    if share > MAX_UNRELATED or np.mean(unrelated > np.median(unrelated) + OUTLIER) > MAX_OUTLIERS:
        worst = starts[int(unrelated.argmax())]
        where = corpus.describe_line(worst)
        yield f"warning: {share:.1%} of the sampled pairs may not be translations, such as near {where}; run tmt check"
