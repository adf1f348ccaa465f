"""Find the difference between two configurations that costs the score, by short trainings (`tmt bisect`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import NamedTuple

from transformer_mt.config.rendering import Difference
from transformer_mt.errors import DivergedError, UserError
from transformer_mt.evaluation.metrics import Scorer, SystemScore, Texts, compare_systems
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.log import log

Indices = tuple[int, ...]
"""Indices of differences, ascending."""
IsBad = Callable[[Indices], bool]
"""Tells whether a trial with these differences is bad. Raises `RefusedError` if it is impossible."""


class RefusedError(Exception):
    """A trial is impossible, because the differences cannot be applied without others."""


def find_culprit(n_differences: int, is_bad: IsBad, is_possible: Callable[[Indices], bool]) -> tuple[Indices, bool]:
    """Find the difference that makes a trial bad. A trial with all differences is bad, and one without is good.

    At first, one culprit is assumed: if one half is good, the other is assumed to be bad. A trial with the result alone
    verifies this at the end. `is_possible` predicts cheaply whether a trial is refused.

    Returns:
        The culprit, of several differences if they cannot be separated, and whether a trial with it alone is bad.
    """
    candidates: list[Indices] = _group_differences(n_differences, is_possible)
    is_verified = True
    while (n := len(candidates)) > 1:
        sizes = sorted(range(1, n), key=lambda size, n=n: abs(2 * size - n))
        parts = [part for size in sizes for part in (candidates[:size], candidates[size:])]
        for part in parts:
            indices = _join(part)
            if not is_possible(indices):
                continue
            try:
                is_part_bad = is_bad(indices)
            except RefusedError:
                continue
            candidates = part if is_part_bad else [group for group in candidates if group not in part]
            is_verified = is_part_bad  # otherwise the remaining candidates were not tried alone
            break
        else:
            break  # cannot be split
    culprit = _join(candidates)
    if not is_verified and is_possible(culprit):
        with suppress(RefusedError):
            is_verified = is_bad(culprit)
    return culprit, is_verified


def _group_differences(n_differences: int, is_possible: Callable[[Indices], bool]) -> list[Indices]:
    """Join each difference that is impossible alone with the nearest one or two that make it possible."""
    groups: list[set[int]] = []
    for index in range(n_differences):
        others = sorted({*range(n_differences)} - {index}, key=lambda other, index=index: abs(other - index))
        partners = chain.from_iterable(combinations(others, size) for size in range(MAX_PARTNERS + 1))
        fitting = (partner for partner in partners if is_possible(tuple(sorted((index, *partner)))))
        group = {index, *next(fitting, ())}
        for other in [other for other in groups if other & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    return [tuple(sorted(group)) for group in sorted(groups, key=min)]


def _join(groups: Sequence[Indices]) -> Indices:
    return tuple(sorted(chain.from_iterable(groups)))


MAX_PARTNERS = 2  # differences that another one needs
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

    differences: Sequence[Difference]  # the search refers to them by index
    prepare: Callable[[Indices], PreparedTrial]  # raises `UserError` if the differences do not fit together
    translate: Callable[[RunFolder], Texts]  # translates the validation set with the last weights of a run
    references: Texts
    scorer: Scorer
    metric: str  # name of the score
    trials: dict[Indices, Trial] = field(default_factory=dict[Indices, Trial])
    translations: dict[Indices, Texts] = field(default_factory=dict[Indices, Texts])
    possible: dict[Indices, bool] = field(default_factory=dict[Indices, bool])

    @property
    def everything(self) -> Indices:
        """Return the indices of all differences, which make BAD."""
        return tuple(range(len(self.differences)))

    def is_possible(self, indices: Indices) -> bool:
        """Return whether the configuration accepts these differences, as far as is known without a training."""
        if indices not in self.possible:
            try:
                self.prepare(indices)
            except UserError:
                self.possible[indices] = False
            else:
                self.possible[indices] = True
        return self.possible[indices]

    def is_bad(self, indices: Indices) -> bool:
        """Return whether a trial is nearer to BAD. Raises `RefusedError` for an impossible one."""
        return self.run_trial(indices).is_bad

    def run_trial(self, indices: Indices) -> Trial:
        """Train, translate and compare with GOOD and BAD, once.

        Raises:
            RefusedError: The differences cannot be applied without others.
            UserError: A training failed, and not because it diverged.
        """
        if indices in self.trials:
            return self.trials[indices]
        if indices not in ((), self.everything):
            count = f"{len(indices)} of the {len(self.everything)} differences"
            log(f"tmt: trial {len(self.trials) - 1}: GOOD with {count}")
        prepared = self.prepare(indices)
        if self._train(prepared, indices):
            self.translations[indices] = self.translate(prepared.run)
        elif not indices:
            raise UserError(
                f"bisect: the training of GOOD diverged ({prepared.run.path}); a comparison is not possible"
            )
        self.trials[indices] = trial = self._compare(indices, str(prepared.run.path))
        return trial

    def _train(self, prepared: PreparedTrial, indices: Indices) -> bool:
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
            if run.exists() or indices in ((), self.everything):
                raise
            self.possible[indices] = False  # for example weights of a warm start that do not fit
            log(f"tmt: these differences cannot be applied without others: {error}")
            raise RefusedError from None
        return True

    def _compare(self, indices: Indices, run: str) -> Trial:
        """Compare the translations of a trial with those of GOOD and BAD, as far as they exist."""
        keys = [self.differences[i].key for i in indices]
        if indices not in self.translations:
            return Trial(run, keys, None, is_bad=True)
        others = [other for other in ((), self.everything) if other in self.translations and other != indices]
        systems = [self.translations[system] for system in (indices, *others)]
        ours, *theirs = compare_systems(systems, self.references, self.scorer, [self.metric])[self.metric].systems
        distances = {
            other: replace(score, difference=ours.score - score.score)
            for other, score in zip(others, theirs, strict=True)
        }
        to_good, to_bad = distances.get(()), distances.get(self.everything)
        is_bad = indices == self.everything
        if to_good is not None and not is_bad:
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
    is_verified: bool = False  # a trial with the culprit alone is nearer to BAD, and differs significantly from GOOD


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
    culprit, is_bad = find_culprit(len(experiment.differences), experiment.is_bad, experiment.is_possible)
    last = experiment.trials.get(culprit)
    return replace(
        result,
        trials=[*experiment.trials.values()],
        culprit=[experiment.differences[i] for i in culprit],
        is_verified=is_bad and last is not None and differs_from_good(last),
    )
