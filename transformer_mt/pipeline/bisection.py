"""Find the difference between two configurations that costs the score, by short trainings (`tmt bisect`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.differences import Difference, list_differences, mix
from transformer_mt.config.root import SCHEMA, Config
from transformer_mt.errors import UserError
from transformer_mt.pipeline.bisection_trials import METRICS, Experiment, Trial, differs_from_good
from transformer_mt.pipeline.culprit_search import find_culprit
from transformer_mt.system.device import resolve_machine
from transformer_mt.system.logging import log

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
    values["train"] |= {"max_steps": steps, "max_epochs": None, "save_every": None, "ledger": False}
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
