"""Find the difference between two configurations that costs the score, by short trainings (`tmt bisect`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import NamedTuple

from transformer_mt.config.rendering import Difference
from transformer_mt.errors import DivergedError, UserError
from transformer_mt.evaluation.metrics import Scorer, SystemScore, Texts, compare_systems
from transformer_mt.runs.folder import RunFolder
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


class PreparedTrial(NamedTuple):
    """A training that may start."""

    run: RunFolder
    train: Callable[[], None]


@dataclass
class Experiment:
    """Trainings of GOOD with some of the differences of BAD. A set of differences is tried once."""

    differences: Sequence[Difference]  # their indices are the items of the search
    prepare: Callable[[Items], PreparedTrial]  # raises `UserError` if the differences do not fit together
    translate: Callable[[RunFolder], Texts]  # translates the validation set with the last weights of a run
    references: Texts
    scorer: Scorer
    metric: str  # name of the score
    trials: dict[Items, Trial] = field(default_factory=dict[Items, Trial])
    translations: dict[Items, Texts] = field(default_factory=dict[Items, Texts])
    refused: dict[Items, str] = field(default_factory=dict[Items, str])

    @property
    def everything(self) -> Items:
        """Return all items: those of BAD."""
        return tuple(range(len(self.differences)))

    def is_possible(self, items: Items) -> bool:
        """Return whether the configuration accepts these differences, as far as is known without a training."""
        if items in self.refused:
            return False
        try:
            self.prepare(items)
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
        if items not in ((), self.everything):
            log(f"tmt: trial {len(self.trials) - 1}: GOOD with {len(items)} of the {len(self.everything)} differences")
        if not self.is_possible(items):
            raise RefusedError(self.refused[items])
        prepared = self.prepare(items)
        if self._train(prepared, items):
            self.translations[items] = self.translate(prepared.run)
        elif not items:
            raise UserError(
                f"bisect: the training of GOOD diverged ({prepared.run.path}); a comparison is not possible"
            )
        self.trials[items] = trial = self._compare(items, str(prepared.run.path))
        return trial

    def _train(self, prepared: PreparedTrial, items: Items) -> bool:
        """Train, unless an earlier call has. Return False if the training diverged."""
        run = prepared.run
        record = run.read_metadata() if run.exists() else {}
        if "ended" in record or record.get("diverged"):
            return "ended" in record
        try:
            prepared.train()
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

    def _compare(self, items: Items, run: str) -> Trial:
        """Compare the translations of a trial with those of GOOD and BAD, as far as they exist."""
        keys = [self.differences[i].key for i in items]
        if items not in self.translations:
            return Trial(run, keys, None, is_bad=True)
        others = [other for other in ((), self.everything) if other in self.translations and other != items]
        systems = [self.translations[system] for system in (items, *others)]
        ours, *theirs = compare_systems(systems, self.references, self.scorer, [self.metric])[self.metric].systems
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
    # A trial with culprit and companions is nearer to BAD, and differs significantly from GOOD.
    is_verified: bool = False


def search(experiment: Experiment, steps: int, not_searched: Sequence[str]) -> Bisection:
    """Train GOOD and BAD, and find the culprit if they differ significantly. `steps` is the length of the trainings."""
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
    culprit = find_culprit(len(experiment.differences), experiment.is_bad, experiment.is_possible)
    last = experiment.trials.get(tuple(sorted((*culprit.items, *culprit.companions))))
    return replace(
        result,
        trials=[*experiment.trials.values()],
        culprit=[experiment.differences[i] for i in culprit.items],
        companions=[experiment.differences[i] for i in culprit.companions],
        is_verified=culprit.is_verified and last is not None and differs_from_good(last),
    )
