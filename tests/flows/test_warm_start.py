"""Warm start: a run that starts from the weights and tokenizers of another run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from helpers import load_plain

from transformer_mt import Translator
from transformer_mt.data.batches import BatchStream, StreamPosition
from transformer_mt.data.data_config import Source
from transformer_mt.data.encoding import LengthLimit, encode_corpus
from transformer_mt.data.sources import load_corpus
from transformer_mt.decoding.engine import TorchEngine
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config
from transformer_mt.flows.train import make_model
from transformer_mt.flows.warm_start import WarmStart
from transformer_mt.model.transformer import Transformer
from transformer_mt.runs.folder import RunFolder, write_record
from transformer_mt.training.loss import explicit_cross_entropy

Tmt = Callable[..., "CompletedProcess[str]"]

NEW = ("train", "--config", "tiny.yaml", "name=new", "train.init_from=runs/tiny")
SAME = ("precision=fp32", "loss.label_smoothing=0", "model.dropout={embedding: 0, residual: 0}", "batches.tokens=4096")


@pytest.fixture
def workspace(tiny_run: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the tiny run and its data into a working directory that the test may change."""
    shutil.copytree(tiny, tmp_path / "workspace")
    monkeypatch.chdir(tmp_path / "workspace")
    return tmp_path / "workspace"


def run_of(done: CompletedProcess[str], name: str = "new") -> RunFolder:
    assert done.returncode == 0, done.stderr
    return RunFolder.open(Path("runs") / name)


def entries(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]


def loss_of(translator: Translator) -> float:
    """Return the mean loss of a model on all training pairs, computed with torch's own functions."""
    model, pair = translator.model, translator.tokenizers
    table = load_corpus(Source(src=("train.en",), tgt=("train.de",)), "en", "de", Path("cache"))
    corpus = encode_corpus(table, pair, LengthLimit(256, "drop"), Path("cache"))
    (batch,), after = BatchStream.plain(corpus, pair, 4096, 1).take(StreamPosition(), 1)
    assert after.epoch == 1, "all pairs are in one batch"
    with torch.no_grad():
        logits = model.logits(model(batch.src, batch.tgt_in))
    _, nll = explicit_cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), model.tgt_pad, 0.0)
    return float(nll) / batch.n_tgt


def config_of(*overrides: str) -> Config:
    return configuration.load(Path("tiny.yaml"), ["train.init_from=runs/tiny", *overrides])


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def warm_start_error(*overrides: str) -> list[str]:
    """Return the error of `WarmStart.open` as lines."""
    with pytest.raises(UserError) as caught:
        WarmStart.open(config_of(*overrides))
    return str(caught.value).split("\n")


# --- starting ---------------------------------------------------------------------------------------------------------


def test_first_loss_equals_the_loss_of_the_other_run_and_resume_does_not_need_it(workspace: Path, tmt: Tmt) -> None:
    done = tmt(*NEW, *SAME, "train.max_steps=1", "train.log_every=1")
    run, old = run_of(done), RunFolder(Path("runs/tiny"))
    best = old.find_checkpoint("best")
    assert re.search(rf"runs/tiny, step {best.step}\b", done.stderr)
    expected = loss_of(load_plain(old.path, precision="fp32"))
    first = next(entry for entry in entries(run) if "train/loss" in entry)
    assert first["train/loss"] == pytest.approx(expected, rel=1e-5)
    assert expected < 0.98 * loss_of(untrained(run))

    assert run.tokenizer.read_bytes() == old.tokenizer.read_bytes()
    digest = hashlib.sha256((best.path / "model.safetensors").read_bytes()).hexdigest()
    provenance = {"path": "runs/tiny", "step": best.step, "sha256": digest}
    assert run.read_record().to_json()["provenance"]["init_from"] == provenance
    assert f"Started from the weights of runs/tiny, step {best.step}" in run.readme.read_text(encoding="utf-8")
    (adam,) = torch.load(run.find_checkpoint("last").path / "training.pt", weights_only=True)["optimizers"]
    assert {float(of["step"]) for of in adam["state"].values()} == {1.0}  # a new optimizer

    shutil.rmtree(old.path)
    again = tmt(*NEW, *SAME, "train.max_steps=2", "train.log_every=1")
    assert run_of(again).find_checkpoint("last").step == 2
    assert "starting from" not in again.stderr
    assert run.read_record().to_json()["provenance"]["init_from"] == provenance


def test_frozen_parts_keep_the_weights_of_the_other_run(workspace: Path, tmt: Tmt) -> None:
    run = run_of(tmt(*NEW, *SAME, "train.max_steps=2", "model.freeze=[embeddings, decoder]"))
    old, new = (weights(load_plain(path, precision="fp32").model) for path in (Path("runs/tiny"), run.path))
    equal = {name for name, weight in new.items() if torch.equal(weight, old[name])}
    assert equal == {name for name in new if name.startswith("decoder.") or ".embedding." in name}


def untrained(run: RunFolder) -> Translator:
    """Return a newly initialised model with the tokenizers of a run."""
    translator = load_plain(run.path, precision="fp32")
    pair = translator.tokenizers
    return Translator(
        TorchEngine([Transformer(translator.model.config, pair.src, pair.tgt).eval()], pair), pair, translator.config
    )


def test_run_killed_before_its_first_checkpoint_repeats_the_warm_start(workspace: Path, tmt: Tmt) -> None:
    run = run_of(tmt(*NEW, "train.max_steps=1"))
    ended = weights(load_plain(run.path, precision="fp32").model)
    shutil.rmtree(run.checkpoints)
    run = run_of(tmt(*NEW, "train.max_steps=1"))
    assert all(
        torch.equal(ended[name], weight)
        for name, weight in weights(load_plain(run.path, precision="fp32").model).items()
    )


def test_warm_start_refuses_tokenizers_that_changed_after_they_were_copied(workspace: Path, tmt: Tmt) -> None:
    """A retrained run assigns other ids to the same pieces."""
    run = run_of(tmt(*NEW, "train.max_steps=1"))
    shutil.rmtree(run.checkpoints)
    other = workspace / "runs" / "tiny" / "tokenizer.json"
    provenance = json.loads(other.read_text(encoding="utf-8"))
    other.write_text(json.dumps({**provenance, "source_bos": not provenance["source_bos"]}), encoding="utf-8")
    done = tmt(*NEW, "train.max_steps=1")
    assert done.returncode == 2
    assert "train.init_from: runs/tiny: " in done.stderr and "--restart" in done.stderr


# --- compatibility ----------------------------------------------------------------------------------------------------


def test_every_weight_is_copied(workspace: Path) -> None:
    old = load_plain("runs/tiny", precision="fp32")
    config = config_of("model.dropout.residual=0.5")
    state = torch.get_rng_state()
    warm_start = WarmStart.open(config)
    assert torch.equal(state, torch.get_rng_state())  # the warm start draws no random numbers
    model = make_model(config, old.tokenizers, warm_start)
    expected = weights(old.model)
    assert all(torch.equal(expected[name], weight) for name, weight in weights(model).items())
    assert warm_start.differences == ()


def test_untied_output_projection_starts_as_a_copy_of_the_tied_one(workspace: Path) -> None:
    config = config_of("model.tie_embeddings=none")
    warm_start, old = WarmStart.open(config), load_plain("runs/tiny", precision="fp32")
    model = make_model(config, old.tokenizers, warm_start)
    assert model.output.weight is not model.decoder.embedding.tokens.weight
    assert torch.equal(model.output.weight, old.model.output.weight)
    assert warm_start.differences == ("model.tie_embeddings: none here, all there",)


ENCODER = "  encoder.layers.0.feed_forward"


@pytest.mark.parametrize(
    ("override", "parameters", "key"),
    [
        (
            "model.d_ff=48",
            [f"{ENCODER}.inner.weight: the model has [48, 16], the weights have [32, 16]"],
            "d_ff: 48 here, 32 there",
        )
    ],
)
def test_parameters_that_do_not_fit_are_listed_with_the_key_to_change(
    workspace: Path, override: str, parameters: list[str], key: str
) -> None:
    lines = warm_start_error(override)
    assert lines[0] == "train.init_from: runs/tiny: its weights do not fit this model:"
    assert set(parameters) <= set(lines)
    assert lines[-1] == f"  model.{key}"
    assert "(base: runs/tiny/config.yaml)" in lines[-2]


def test_differing_tokenizer_settings_are_listed(workspace: Path) -> None:
    lines = warm_start_error("tokenizer.vocab_size=400", "tokenizer.source_bos=true")
    assert lines[2:] == [
        "  tokenizer.vocab_size: 400 here, 340 there",
        "  tokenizer.source_bos: True here, False there",
    ]


# --- refusals --------------------------------------------------------------------------------------------------


def test_warm_start_refuses_the_run_itself(workspace: Path, tmt: Tmt) -> None:
    before = sorted(Path("runs").iterdir())
    done = tmt("train", "--config", "tiny.yaml", "--restart", "train.init_from=runs/tiny")
    assert (done.returncode, "is this run itself" in done.stderr) == (2, True), done.stderr
    assert sorted(Path("runs").iterdir()) == before


def test_warm_start_refuses_validation_pairs_that_the_other_run_was_trained_on(workspace: Path) -> None:
    """Trap 34."""
    warm_start = WarmStart.open(configuration.load(Path("tiny.yaml"), ["train.init_from=runs/tiny"]))
    record = warm_start.run.read_record().to_json()
    text = record["sha256"]["train"]
    warm_start.check_validation_split({"train": text})
    with pytest.warns(match=r"runs/tiny .* data\.validation"):
        warm_start.check_validation_split({"train": "another-rest-seed1-5"})
    with pytest.raises(UserError, match=r"runs/tiny: .*validation pairs"):
        warm_start.check_validation_split({"train": f"{text}-rest-seed1-5"})
    write_record(warm_start.run, {**record, "sha256": {"train": f"{text}-rest-seed1-5"}})
    warm_start.check_validation_split({"train": f"{text}-rest-seed1-5"})
    with pytest.raises(UserError, match=r"data\.validation_size"):
        warm_start.check_validation_split({"train": f"{text}-rest-seed2-5"})
