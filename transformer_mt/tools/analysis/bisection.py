"""Find the difference between two configurations that costs the score, by short trainings (`tmt bisect`)."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import (
    RUN_KEYS,
    Difference,
    list_differences,
    mix,
)
from transformer_mt.config.root import SCHEMA, Config
from transformer_mt.decoding.text_encoder import TruncatedSourceWarning
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import DivergedError, UserError
from transformer_mt.evaluation.metrics import MAX_RESAMPLED_PAIRS, Scorer
from transformer_mt.evaluation.significance import SystemScore, Texts, compare_systems
from transformer_mt.flows.prepare import load_split
from transformer_mt.flows.train import train
from transformer_mt.flows.validation import list_validation_sources
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import resolve_machine
from transformer_mt.system.log import log

MAX_SUBSETS = 12  # differences of which all subsets are tried; of more differences, random halves
N_RANDOM = 500

Items = tuple[int, ...]
"""Numbers of differences, ascending."""


class RefusedError(Exception):
    """A trial is impossible, because the differences cannot be applied without others."""


class Culprit(NamedTuple):
    """The result of a search."""

    items: Items  # one, or several that cannot be separated
    companions: Items  # innocent differences without which the culprit cannot be applied
    is_verified: bool  # a trial with only these differences is bad


IsBad = Callable[[Items], bool]
"""Tells whether a trial with these differences is bad. Raises `RefusedError` if it is impossible."""


def find_culprit(n_items: int, is_bad: IsBad, is_possible: Callable[[Items], bool]) -> Culprit:
    """Find the item that makes a trial bad. A trial with all items is bad, and one without items is good.

    At first, one culprit is assumed: if one half is good, the other is taken for bad. A trial with the result alone
    verifies this at the end. `is_possible` predicts cheaply whether a trial is refused.
    """
    items = tuple(range(n_items))
    candidates, is_verified = items, True
    while len(candidates) > 1:
        for half in _propose_splits(candidates, is_possible):
            try:
                is_verified = is_bad(half)
            except RefusedError:
                continue
            candidates = half if is_verified else tuple(item for item in candidates if item not in half)
            break
        else:
            break  # cannot be split
    if is_verified:
        return Culprit(candidates, (), is_verified=True)
    others = [item for item in items if item not in candidates]
    nearest = sorted(others, key=lambda item: min(abs(item - candidate) for candidate in candidates))
    for companions in chain([()], combinations(nearest, 1), combinations(nearest, 2)):
        trial = tuple(sorted((*candidates, *companions)))
        try:
            if is_possible(trial):
                return Culprit(candidates, tuple(sorted(companions)), is_verified=is_bad(trial))
        except RefusedError:
            continue
    return Culprit(candidates, (), is_verified=False)


def _propose_splits(candidates: Items, is_possible: Callable[[Items], bool]) -> Iterator[Items]:
    """Yield possible parts of the candidates, near to a half first, and those whose other part is possible, too."""
    n_half = len(candidates) // 2
    fallback: list[Items] = []
    for part in _propose_parts(candidates, n_half):
        if is_possible(part):
            rest = tuple(item for item in candidates if item not in part)
            if is_possible(rest):
                yield part
            else:
                fallback.append(part)
    yield from fallback


def _propose_parts(candidates: Items, n_half: int) -> Iterator[Items]:
    """Yield different parts of the candidates: both contiguous halves first."""
    yield candidates[:n_half]
    yield candidates[n_half:]
    if len(candidates) <= MAX_SUBSETS:
        sizes = sorted(range(1, len(candidates)), key=lambda size: abs(2 * size - len(candidates)))
        yield from chain.from_iterable(combinations(candidates, size) for size in sizes)
        return
    rng = random.Random(0)
    for _ in range(N_RANDOM):
        yield tuple(sorted(rng.sample(candidates, n_half)))
    for size in range(n_half - 1, 0, -1):
        for start in range(len(candidates) - size + 1):
            yield candidates[start : start + size]


METRICS = {"bleu": "BLEU", "chrf": "chrF"}  # validation.metric -> name of the score; chrF for any other metric
MAX_P = 0.05  # a difference is significant below it


@dataclass(frozen=True)
class Trial:
    """A short training, and how it compares with those of GOOD and BAD. None: diverged, or not compared."""

    run: str
    keys: Sequence[str]  # of BAD that are applied to GOOD
    score: float | None
    to_good: SystemScore | None = None  # difference: score of the trial minus that of GOOD
    to_bad: SystemScore | None = None
    is_bad: bool = False  # its score is nearer to that of BAD


@dataclass
class Experiment:
    """Trainings of GOOD with some of the differences of BAD. A set of differences is tried once."""

    good: Config
    bad: Config
    work: Path
    trials: dict[Items, Trial] = field(default_factory=dict[Items, Trial])
    translations: dict[Items, Texts] = field(default_factory=dict[Items, Texts])
    refused: dict[Items, str] = field(default_factory=dict[Items, str])

    @cached_property
    def differences(self) -> list[Difference]:
        """Return the differences. Their numbers are the items of the search."""
        return list_differences(self.good, self.bad)

    @cached_property
    def everything(self) -> Items:
        """Return all items: those of BAD."""
        return tuple(range(len(self.differences)))

    @property
    def metric(self) -> str:
        """Return the name of the score."""
        return METRICS[self.good.validation.metric]

    @cached_property
    def _pairs(self) -> list[tuple[str, str, str | None]]:
        """Return the validation pairs with their tags."""
        corpus = load_split(self.good, "validation")
        tags = [part.tag for part in list_validation_sources(self.good, corpus) for _ in range(part.first, part.end)]
        return [(*pair, tag) for pair, tag in zip(corpus, tags, strict=True)][:MAX_RESAMPLED_PAIRS]

    @cached_property
    def references(self) -> list[str]:
        """Return the references of the validation pairs."""
        return [tgt for _, tgt, _ in self._pairs]

    def config(self, items: Items) -> Config:
        """Return the configuration of a trial. Raises `UserError` if the differences do not fit together."""
        values = mix(self.good, self.bad, [self.differences[i].path for i in items])
        settings = {key: value for key, value in values.items() if key not in RUN_KEYS}
        digest = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        kind = {(): "good", self.everything: "bad"}.get(items, "trial")
        values |= {"name": f"{kind}-{digest}", "runs_dir": str(self.work)}
        return configuration.from_values(values, self.work)

    def is_possible(self, items: Items) -> bool:
        """Return whether the configuration accepts these differences, as far as is known without a training."""
        if items in self.refused:
            return False
        try:
            self.config(items)
        except UserError as error:
            self.refused[items] = str(error)
            return False
        return True

    def is_bad(self, items: Items) -> bool:
        """Return whether a trial is nearer to BAD. Raises `RefusedError` for an impossible one."""
        return self.run_trial(items).is_bad

    def run_trial(self, items: Items) -> Trial:
        """Train, translate and compare with GOOD and BAD, once.

        Raises:
            RefusedError: The differences cannot be applied without others.
            UserError: A training failed, and not because it diverged.
        """
        if items in self.trials:
            return self.trials[items]
        keys = [self.differences[i].key for i in items]
        if items not in ((), self.everything):
            log(f"tmt: trial {len(self.trials) - 1}: GOOD with {len(items)} of the {len(self.everything)} differences")
        if not self.is_possible(items):
            raise RefusedError(self.refused[items])
        config = self.config(items)
        run = RunFolder(Path(config.runs_dir) / str(config.name))
        if self._train(run, config, items):
            self.translations[items] = self._translate(run)
        elif not items:
            raise UserError(f"bisect: the training of GOOD diverged ({run.path}); a comparison is not possible")
        self.trials[items] = trial = self._compare(items, str(run.path), keys)
        return trial

    def _train(self, run: RunFolder, config: Config, items: Items) -> bool:
        """Train, unless an earlier call has. Return False if the training diverged."""
        record = run.read_metadata() if run.exists() else {}
        if "ended" in record or record.get("diverged"):
            return "ended" in record
        try:
            train(config)
        except DivergedError as error:
            log(f"tmt: {error}")
            return False
        except UserError as error:
            if run.exists() or items in ((), self.everything):
                raise
            self.refused[items] = str(error)  # for example weights of a warm start that do not fit
            log(f"tmt: these differences cannot be applied without others: {error}")
            raise RefusedError(str(error)) from None
        return True

    def _translate(self, run: RunFolder) -> list[str]:
        """Translate the validation set as a validation does."""
        translator = Translator.load(run.path, "last", self.good.device, self.good.threads)
        options = self.good.decoding.for_validation().model_dump()
        sources, tags = [src for src, _, _ in self._pairs], [tag for _, _, tag in self._pairs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedSourceWarning)
            return translator.translate(sources, tags=tags, **options)

    def _compare(self, items: Items, run: str, keys: Sequence[str]) -> Trial:
        """Compare the translations of a trial with those of GOOD and BAD, as far as they exist."""
        if items not in self.translations:
            return Trial(run, keys, None, is_bad=True)
        others = [other for other in ((), self.everything) if other in self.translations and other != items]
        systems = [self.translations[system] for system in (items, *others)]
        scorer = Scorer.from_config(self.good.scoring, self.good.data.tgt_lang)
        ours, *theirs = compare_systems(systems, self.references, scorer, [self.metric])[self.metric].systems
        distances = {
            other: replace(score, difference=ours.score - score.score)
            for other, score in zip(others, theirs, strict=True)
        }
        to_good, to_bad = distances.get(()), distances.get(self.everything)
        if items in ((), self.everything):
            is_bad = bool(items)
        else:
            assert to_good is not None
            bad_score = to_bad.score if to_bad else 0.0  # BAD diverged
            is_bad = abs(ours.score - bad_score) < abs(ours.score - to_good.score)
        return Trial(run, keys, ours.score, to_good, to_bad, is_bad)


def differs_from_good(trial: Trial) -> bool:
    """Return whether a trial diverged, or differs significantly from GOOD by approximate randomisation."""
    if trial.score is None:
        return True
    p_value = trial.to_good and trial.to_good.p_randomisation
    return p_value is not None and p_value < MAX_P


NOT_SEARCHED = ("data.validation", "data.validation_size", "data.test", "validation", "scoring", "decoding")
"""Keys that do not affect the weights after a number of steps. Neither do those that may change when a run resumes."""
TEST_FILTERS = {"overlap", "near_overlap"}  # they need the test sets
DEFAULT_DIVISOR = 4  # without --steps, a trial takes a quarter of the shorter training


@dataclass(frozen=True)
class Bisection:
    """The result of a bisection."""

    steps: int
    metric: str
    n_pairs: int
    differences: Sequence[Difference]
    not_searched: Sequence[str]  # keys that differ and do not affect the short trainings
    trials: Sequence[Trial]  # GOOD, BAD, and those of the search
    is_significant: bool  # the difference between GOOD and BAD; without it, there is no search
    culprit: Sequence[Difference] = ()  # several if they cannot be separated
    companions: Sequence[Difference] = ()  # innocent ones without which the culprit cannot be applied
    is_verified: bool = (
        False  # a trial with culprit and companions is nearer to BAD, and differs significantly from GOOD
    )


def bisect(good: Config, bad: Config, work: Path, steps: int | None = None) -> Bisection:
    """Search the difference of two configurations that costs the score.

    `work` gets a run for each trial. A finished trial is not trained again. `steps` is the length of the trainings.

    Raises:
        UserError: The configurations have no difference that affects a training, or a training is impossible.
    """
    if good.data.validation is None:
        raise UserError(
            "bisect: data.validation of GOOD is not set, and pairs that are split off depend on the training text;\n"
            "set it, for example data.validation='{src: F, tgt: G}' at the end of the command"
        )
    steps = steps or choose_steps(good, bad)
    filters = {filter_.name for config in (good, bad) for filter_ in config.data.filters}
    short_good, short_bad = (
        _shorten(good, config, steps, keep_tests=bool(filters & TEST_FILTERS)) for config in (good, bad)
    )
    experiment = Experiment(short_good, short_bad, work)
    not_searched = [difference.key for difference in list_differences(good, bad) if not _is_searched(difference)]
    if not experiment.differences:
        raise UserError(
            "bisect: both configurations train the same model"
            + (f"; they differ only in {', '.join(not_searched)}" if not_searched else "")
        )
    n_differences = len(experiment.differences)
    log(f"tmt: {n_differences} differences; each training takes {steps:,} steps; the runs are in {work}")
    trials = [experiment.run_trial(()), experiment.run_trial(experiment.everything)]
    result = Bisection(
        steps,
        experiment.metric,
        len(experiment.references),
        experiment.differences,
        not_searched,
        trials,
        is_significant=differs_from_good(trials[1]),
    )
    if not result.is_significant:
        return result
    culprit = find_culprit(n_differences, experiment.is_bad, experiment.is_possible)
    last = experiment.trials.get(tuple(sorted((*culprit.items, *culprit.companions))))
    return replace(
        result,
        trials=[*experiment.trials.values()],
        culprit=[experiment.differences[i] for i in culprit.items],
        companions=[experiment.differences[i] for i in culprit.companions],
        is_verified=culprit.is_verified and last is not None and differs_from_good(last),
    )


def choose_steps(good: Config, bad: Config) -> int:
    """Return a quarter of the shorter training, or twice the longer warm-up if that is more, within the training."""
    lengths = [length for config in (good, bad) if (length := config.train.max_steps) is not None]
    if not lengths:
        raise UserError("bisect: neither configuration has train.max_steps; pass the length of the trials as --steps N")
    warmup = max(config.schedule.warmup_steps for config in (good, bad))
    return min(max(min(lengths) // DEFAULT_DIVISOR, 2 * warmup), *lengths)


def _is_searched(difference: Difference) -> bool:
    is_excluded = any(f"{difference.key}.".startswith(f"{key}.") for key in NOT_SEARCHED)
    return not is_excluded and not SCHEMA.may_change(difference.key)


def _shorten(good: Config, config: Config, steps: int, *, keep_tests: bool) -> Config:
    """Return the configuration of a training of `steps` steps, with one validation at its end.

    `config` is GOOD or BAD; GOOD has the settings that are not searched. The ends of the schedule and of stages are
    relative to `train.max_steps` of `config`.
    """
    values = mix(
        good, config, [difference.path for difference in list_differences(good, config) if _is_searched(difference)]
    )
    if not keep_tests:
        values["data"]["test"] = {}
    full = config.train.max_steps
    for stage in values["data"]["stages"]:
        if full is not None and stage["until"] is not None and not stage["until"].endswith("%"):
            share = 100 * int(stage["until"]) / full
            stage["until"] = f"{share:.6g}%" if share < 100 else None
    if values["schedule"]["total_steps"] == full:
        values["schedule"]["total_steps"] = None
    values["train"] |= {"max_steps": steps, "max_epochs": None, "save_every": None}
    values["train"]["log_every"] = max(1, steps // 10)
    values["validation"] = {
        "every": steps,
        "patience": None,
        "probes": 0,
        "metric": good.validation.metric if good.validation.metric in METRICS else "chrf",
    }
    values |= {"keep": {"best": 1, "last": 1}, "export": None}
    values["precision"] = resolve_machine(values["device"], values["precision"], values["threads"]).precision
    try:
        return configuration.from_values(values, Path(str(config.name)))
    except UserError as error:
        raise UserError(
            f"bisect: {config.name} cannot train for {steps:,} steps: {error}\npass another --steps"
        ) from None
