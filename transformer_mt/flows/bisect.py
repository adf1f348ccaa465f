"""Configure and run the short trainings in which `tmt bisect` searches the setting that costs the score."""

from __future__ import annotations

import json
import warnings
from functools import partial
from hashlib import sha256
from pathlib import Path

from transformer_mt.config.rendering import RUN_KEYS, Difference, list_differences, mix
from transformer_mt.decoding.translator import Translator, TruncatedSourceWarning
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import MAX_RESAMPLED_PAIRS, EvaluationSet, Texts
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config, may_change_on_resume
from transformer_mt.flows.evaluation import make_evaluation_set
from transformer_mt.flows.prepare import load_split
from transformer_mt.flows.train import train
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.device import resolve_machine
from transformer_mt.system.log import log
from transformer_mt.tools.analysis.bisection import Bisection, Experiment, Indices, PreparedTrial, search
from transformer_mt.tools.markup.stages import make_stages

METRICS = {"bleu": "BLEU", "chrf": "chrF"}  # validation.metric -> name of the score; chrF for any other metric
NOT_SEARCHED = ("data.validation", "data.validation_size", "data.test", "validation", "scoring", "decoding")
"""Keys that do not affect the weights after a number of steps. Neither do those that may change when a run resumes."""
TEST_FILTERS = {"overlap", "near_overlap"}  # they need the test sets
DEFAULT_DIVISOR = 4  # without --steps, a trial takes a quarter of the shorter training


def bisect(good: Config, bad: Config, work: Path, steps: int | None = None) -> Bisection:
    """Search the difference of two configurations that costs the score.

    `work` gets a run for each trial. A finished trial is not trained again. `steps` is the length of the trainings.
    Raises `UserError` if the configurations have no difference that affects a training, or a training is impossible.
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
    differences = list_differences(short_good, short_bad)
    not_searched = [difference.key for difference in list_differences(good, bad) if not _is_searched(difference)]
    if not differences:
        raise UserError(
            "bisect: both configurations train the same model"
            + (f"; they differ only in {', '.join(not_searched)}" if not_searched else "")
        )
    log(f"tmt: {len(differences)} differences; each training takes {steps:,} steps; the runs are in {work}")
    held_out = make_evaluation_set(short_good, "validation", load_split(short_good, "validation"))
    held_out = held_out.select(range(min(len(held_out.sources), MAX_RESAMPLED_PAIRS)))

    def prepare(indices: Indices) -> PreparedTrial:
        config = _configure_trial(short_good, short_bad, [differences[i] for i in indices], len(differences), work)
        return PreparedTrial(RunFolder(Path(config.runs_dir) / str(config.name)), lambda: train(config))

    experiment = Experiment(
        differences,
        prepare,
        partial(translate_held_out, short_good, held_out),
        held_out.references,
        held_out.scorer,
        METRICS[short_good.validation.metric],
    )
    return search(experiment, steps, not_searched)


def _configure_trial(good: Config, bad: Config, applied: list[Difference], n_differences: int, work: Path) -> Config:
    """Return the configuration of a trial. Raises `UserError` if the differences do not fit together."""
    values = mix(good, bad, [difference.path for difference in applied])
    settings = {key: value for key, value in values.items() if key not in RUN_KEYS}
    digest = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    kind = {0: "good", n_differences: "bad"}.get(len(applied), "trial")
    values |= {"name": f"{kind}-{digest}", "runs_dir": str(work)}
    return configuration.from_values(values, work)


def translate_held_out(good: Config, held_out: EvaluationSet, run: RunFolder) -> Texts:
    """Translate the validation set with the last weights of a run, as a validation does."""
    translator = Translator.load(run.path, "last", good.device, good.threads, make_stages=make_stages)
    options = good.decoding.for_validation().model_dump()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedSourceWarning)
        return translator.translate(held_out.sources, tags=held_out.tags, **options)


def choose_steps(good: Config, bad: Config) -> int:
    """Return a quarter of the shorter training, or twice the longer warm-up if that is more, within the training."""
    lengths = [length for config in (good, bad) if (length := config.train.max_steps) is not None]
    if not lengths:
        raise UserError("bisect: neither configuration has train.max_steps; pass the length of the trials as --steps N")
    warmup = max(config.schedule.warmup_steps for config in (good, bad))
    return min(max(min(lengths) // DEFAULT_DIVISOR, 2 * warmup), *lengths)


def _is_searched(difference: Difference) -> bool:
    is_excluded = any(f"{difference.key}.".startswith(f"{key}.") for key in NOT_SEARCHED)
    return not is_excluded and not may_change_on_resume(difference.key)


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
