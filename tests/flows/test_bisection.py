"""`tmt bisect`: the configurations of the trials, the search with invented trainings, and one with real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.config.rendering import list_differences
from transformer_mt.errors import DivergedError, UserError
from transformer_mt.evaluation import metrics
from transformer_mt.evaluation.metrics import EvaluationSet, Texts
from transformer_mt.flows import bisect as bisect_flow
from transformer_mt.flows import configuration
from transformer_mt.flows.bisect import bisect, choose_steps
from transformer_mt.flows.configuration import Config
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.analysis.bisection import Bisection

GOOD = Path("tiny.yaml")
FIVE = ("seed=2", "data.max_length=99", "model.d_ff=48", "loss.label_smoothing=0.2", "optimizer.clip_norm=2")


def load(*overrides: str) -> Config:
    return configuration.load(GOOD, overrides)


Invent = Callable[[Callable[[Config], Any]], list[Config]]


@pytest.fixture
def invent(in_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Invent:
    """`invent(is_bad)`: replace trainings by an invention. Returns the growing list of the configurations "trained".

    A bad model writes one word. If `is_bad` returns an exception, the training raises it.
    """

    def invent(is_bad: Callable[[Config], Any]) -> list[Config]:
        trained: list[Config] = []

        def train(config: Config) -> None:
            trained.append(config)
            if isinstance(result := is_bad(config), Exception):
                raise result

        def translate(good: Config, held_out: EvaluationSet, run: RunFolder) -> Texts:
            (config,) = (config for config in trained if config.name == run.path.name)
            return ["sieben"] * len(held_out.references) if is_bad(config) else held_out.references

        monkeypatch.setattr(bisect_flow, "train", train)
        monkeypatch.setattr(bisect_flow, "translate_held_out", translate)
        monkeypatch.setattr(metrics, "RANDOMISATION_TRIALS", 300)  # exactly, p is 2 / 2^8 for 8 pairs
        monkeypatch.setattr(metrics, "BOOTSTRAP_SAMPLES", 10)
        return trained

    return invent


def search(*bad: str, steps: int = 10) -> Bisection:
    return bisect(load(), load("name=bad", *bad), Path("nowhere"), steps)


def keys(found: Any) -> list[str]:
    return [one.key for one in found]


@pytest.mark.parametrize("key", ["seed", "optimizer.clip_norm"])
def test_the_culprit_is_found_and_only_it_is_applied_in_the_last_trial(key: str, invent: Invent) -> None:
    wanted = configuration.flatten(load(*FIVE))[key]
    trained = invent(lambda config: configuration.flatten(config)[key] == wanted)
    found = search(*FIVE)
    assert keys(found.culprit) == [key] and found.is_verified
    assert len(trained) == len({config.name for config in trained}) == len(found.trials) <= 2 + 4
    assert keys(list_differences(trained[0], trained[1])) == [one.partition("=")[0] for one in FIVE]
    (alone,) = (config for config in trained if keys(list_differences(trained[0], config)) == [key])
    trial = next(trial for trial in found.trials if Path(trial.run).name == alone.name)
    assert trial.is_bad and trial.to_good and trial.to_good.difference and trial.to_good.difference < 0


def test_trials_are_short_trainings_that_are_validated_once(invent: Invent) -> None:
    trained = invent(lambda config: config.seed == 2)
    found = search("seed=2", "train.max_steps=900", "validation.every=7", "decoding.beam=2", "train.log_every=1")
    assert keys(found.differences) == ["seed"]
    assert {"train.max_steps", "validation.every", "decoding.beam", "train.log_every"} <= {*found.not_searched}
    for config in trained:
        assert config.train.max_steps == 10
        assert (config.validation.every, config.validation.metric) == ("10 steps", "chrf")
        assert not config.data.test and config.runs_dir == "nowhere"


def test_score_and_test_sets_are_those_of_good(invent: Invent) -> None:
    trained = invent(lambda config: config.seed == 2)
    found = search("seed=2", "validation.metric=bleu", "data.test={}", "data.filters=[overlap]")
    assert keys(found.differences) == ["seed", "data.filters"]
    assert found.metric == "chrF"
    assert [config.data.test for config in trained] == [load().data.test] * len(trained)


def test_ends_of_schedule_and_stages_scale_with_the_length(invent: Invent) -> None:
    trained = invent(lambda config: config.seed == 2)
    wsd = ("schedule.kind=wsd", "schedule.total_steps=12", "data.train=[{name: a, src: train.en, tgt: train.de}]")
    good = load(*wsd, "data.stages=[{until: 6, weights: {a: 1}}, {until: 12, weights: {a: 1}}]")
    stages = "data.stages=[{until: 12, weights: {a: 1}}, {until: 24, weights: {a: 1}}]"
    bad = load(*wsd, stages, "train.max_steps=24", "seed=2").model_copy(
        update={"schedule": good.schedule.model_copy(update={"total_steps": 24})}
    )
    assert keys(bisect(good, bad, Path("nowhere"), 8).differences) == ["seed"]
    assert trained[0].schedule.total_steps is None
    assert [stage.last_step(8) for stage in trained[0].data.stages] == [4, None]


@pytest.mark.parametrize(
    ("lengths", "warmup", "steps"),
    [((1000, 4000), 10, 250), ((1000, 4000), 300, 600), ((1000, 4000), 900, 1000), ((None, 400), 10, 100)],
)
def test_default_length_is_a_quarter_or_twice_the_warm_up(
    lengths: tuple[int | None, int], warmup: int, steps: int, in_tiny: Path
) -> None:
    good, bad = (
        load(f"train.max_steps={'null' if length is None else length}", f"schedule.warmup_steps={warmup}")
        for length in lengths
    )
    assert choose_steps(good, bad) == choose_steps(bad, good) == steps


def test_two_culprits_that_act_together_are_reported_as_such(invent: Invent) -> None:
    invent(lambda config: config.seed == 2 and config.optimizer.clip_norm == 2)
    found = search(*FIVE)
    assert found.is_significant and not found.is_verified


def test_nothing_is_searched_without_a_significant_difference(invent: Invent) -> None:
    trained = invent(lambda _: False)
    found = search(*FIVE)
    assert not found.is_significant and not found.culprit
    assert len(trained) == 2


def test_a_training_that_diverges_is_bad(invent: Invent) -> None:
    invent(lambda config: DivergedError("not finite") if config.loss.label_smoothing == 0.2 else False)
    found = search(*FIVE)
    assert keys(found.culprit) == ["loss.label_smoothing"] and found.is_verified
    assert {trial.score for trial in found.trials if trial.is_bad} == {None}


def test_width_and_heads_that_fit_only_together_are_one_group(invent: Invent) -> None:
    """18 is no multiple of 4 heads, and 16 none of 6."""
    trained = invent(lambda config: config.model.d_model == 18)
    bad = load("model.d_model=18", "model.n_heads=6", "seed=2", "data.max_length=99")
    found = bisect(load("model.n_heads=4"), bad, Path("nowhere"), 10)
    assert keys(found.culprit) == ["model.d_model", "model.n_heads"]
    assert found.is_verified
    assert all((config.model.d_model == 18) == (config.model.n_heads == 6) for config in trained)


def test_differences_that_a_training_refuses_are_split_in_another_way(invent: Invent) -> None:
    """A warm start may refuse a model that the configuration accepts."""

    def is_bad(config: Config) -> bool | Exception:
        if (config.model.d_ff == 48) != (config.seed == 2):
            return UserError("its weights do not fit")
        return config.optimizer.clip_norm == 2

    invent(is_bad)
    found = search(*FIVE)
    assert keys(found.culprit) == ["optimizer.clip_norm"] and found.is_verified


def test_an_error_of_the_training_of_bad_is_not_hidden(invent: Invent) -> None:
    invent(lambda config: UserError("no such file") if config.seed == 2 else False)
    with pytest.raises(UserError, match="no such file"):
        search(*FIVE)


def test_a_source_is_a_difference(invent: Invent) -> None:
    web, news = "{name: web, src: train.en, tgt: train.de}", "{name: news, src: train.en, tgt: train.de}"
    invent(lambda config: len(config.data.train_sources) == 2)
    good, bad = (f"data.train=[{sources}]" for sources in (web, f"{news}, {web}"))
    found = bisect(load(good), load(bad, "seed=2", "model.d_ff=48"), Path("nowhere"), 10)
    assert keys(found.culprit) == ["data.train.news"] and found.is_verified


def test_mistakes_are_explained_before_any_training(in_tiny: Path, tmp_path: Path, tmt: Tmt) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"base: {in_tiny / 'tiny.yaml'}\nseed: 2\n", encoding="utf-8")
    command = ("bisect", GOOD, other, "--work", tmp_path / "work")
    assert_user_error(tmt("bisect", GOOD, GOOD), "both configurations train the same model")
    assert_user_error(tmt(*command, "data.validation=null"), "data.validation of GOOD is not set")
    assert_user_error(tmt(*command, "train.max_steps=null", "train.max_epochs=1"), "--steps N")
    assert_user_error(tmt(*command, "schedule.kind=wsd", "--steps", 4), "tiny cannot train for 4 steps", "--steps")
    assert_user_error(tmt(*command, "--steps", 0), "--steps: 0")
    assert_user_error(tmt("bisect", GOOD, "none.yaml"), "none.yaml: no such run folder and no such YAML file")
    assert not (tmp_path / "work").exists()


def test_command_prints_the_trials_and_the_culprit(invent: Invent, tmp_path: Path, tmt: Tmt) -> None:
    invent(lambda config: config.seed == 2)
    other = tmp_path / "other.yaml"
    other.write_text(
        "base: tiny.yaml\nseed: 2\nmodel: {d_ff: 48}\nkeep: {last: 3}\n".replace("tiny", str(Path("tiny").resolve()))
    )
    done = tmt("bisect", GOOD, other, "--work", "nowhere", "--steps", 10)
    lines = assert_succeeded(done).splitlines()
    assert lines[0] == "2 differences, 10 steps; chrF of 8 pairs"
    assert lines[1].split()[:3] == ["trial", "changes", "score"]
    assert "not searched, because they do not change these trainings: keep.last" in lines
    assert lines[-2:] == ["culprit:", "  seed: 1 -> 2"]


def test_command_without_a_verified_culprit_fails_and_shows_the_last_candidate(
    invent: Invent, tmp_path: Path, tmt: Tmt
) -> None:
    invent(lambda config: config.seed == 2 and config.model.d_ff == 48)
    other = tmp_path / "other.yaml"
    other.write_text(f"base: {GOOD.resolve()}\nseed: 2\nmodel: {{d_ff: 48}}\n", encoding="utf-8")
    done = tmt("bisect", GOOD, other, "--work", "nowhere", "--steps", 10)
    assert done.returncode == 1
    title, candidate = done.stdout.splitlines()[-2:]
    assert title.startswith("no culprit was verified") and "--steps" in title
    assert candidate in ("  seed: 1 -> 2", "  model.d_ff: 32 -> 48")


@pytest.mark.slow
def test_real_trainings_find_the_culprit_and_are_not_repeated(
    in_tiny: Path, tmp_path: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        f"base: {in_tiny / 'tiny.yaml'}\nseed: 2\nmodel: {{d_ff: 48}}\nschedule: {{peak: 1.0e-9}}\n", encoding="utf-8"
    )
    command = ("bisect", GOOD, other, "--work", tmp_path / "work", "--steps", 150, "--json", "schedule.warmup_steps=20")
    found = json.loads(assert_succeeded(tmt(*command)))
    assert [one["key"] for one in found["differences"]] == ["seed", "model.d_ff", "schedule.peak"]
    assert [one["key"] for one in found["culprit"]] == ["schedule.peak"]
    listed = json.loads(tmt("runs", tmp_path / "work", "--json").stdout)["runs"]
    assert {one["path"] for one in listed} == {trial["run"] for trial in found["trials"]}
    assert {(one["status"], one["step"]) for one in listed} == {("finished", 150)}
    monkeypatch.setattr(bisect_flow, "train", None)
    assert json.loads(assert_succeeded(tmt(*command))) == found
