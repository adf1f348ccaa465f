"""The short trainings of `tmt bisect`: GOOD with some of the differences of BAD, compared with both."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from transformer_mt.config import root as configuration
from transformer_mt.config.differences import RUN_KEYS, Difference, list_differences, mix
from transformer_mt.config.root import Config
from transformer_mt.decoding.text_encoder import TruncatedSourceWarning
from transformer_mt.decoding.translator import Translator
from transformer_mt.errors import DivergedError, UserError
from transformer_mt.evaluation.intervals import MAX_RESAMPLED_PAIRS
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.evaluation.significance import SystemScore, Texts, compare_systems
from transformer_mt.pipeline.culprit_search import Items, RefusedError
from transformer_mt.pipeline.data import load_split
from transformer_mt.pipeline.train import train
from transformer_mt.pipeline.validation import list_validation_sources
from transformer_mt.runs.folder import RunFolder
from transformer_mt.system.logging import log

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
