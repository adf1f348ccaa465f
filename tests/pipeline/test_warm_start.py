"""A run that begins with the weights and tokenizers of another."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from transformer_mt import Translator
from transformer_mt.config import root as configuration
from transformer_mt.config.root import Config
from transformer_mt.data.batches import BatchStream, StreamPosition
from transformer_mt.data.corpus import load_corpus
from transformer_mt.data.encoding import LengthLimit, encode_corpus
from transformer_mt.data.sources import Source
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer
from transformer_mt.pipeline.warm_start import WarmStart
from transformer_mt.runs import metadata
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training.cross_entropy import plain_cross_entropy

Tmt = Callable[..., "CompletedProcess[str]"]

NEW = ("train", "--config", "tiny.yaml", "name=new", "train.init_from=runs/tiny")
SAME = ("precision=fp32", "loss.label_smoothing=0", "model.dropout={embedding: 0, residual: 0}", "batches.tokens=4096")


@pytest.fixture
def copy(tiny_run: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tiny run with everything around it, to work in and to change."""
    shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def run_of(done: CompletedProcess[str], name: str = "new") -> RunFolder:
    assert done.returncode == 0, done.stderr
    return RunFolder.open(Path("runs") / name)


def entries(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]


def loss_of(translator: Translator) -> float:
    """The mean loss of a model on all training pairs, in one batch, with torch's own functions."""
    model, pair = translator.model, translator.tokenizers
    table = load_corpus(Source(src=("train.en",), tgt=("train.de",)), "en", "de", Path("cache"))
    corpus = encode_corpus(table, pair, LengthLimit(256, "drop"), Path("cache"))
    (batch,), after = BatchStream(corpus, pair, 4096, 1).take(StreamPosition(), 1)
    assert after.epoch == 1, "all pairs are in one batch"
    with torch.no_grad():
        logits = model.logits(model(batch.src, batch.tgt_in))
    loss = plain_cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), model.tgt_pad, 0.0)
    return float(loss.nll) / batch.n_tgt


def config_of(*overrides: str) -> Config:
    return configuration.load(Path("tiny.yaml"), ["train.init_from=runs/tiny", *overrides])


def weights(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def section_error(*overrides: str) -> list[str]:
    """The lines that say why a run cannot begin so."""
    with pytest.raises(UserError) as caught:
        WarmStart.open(config_of(*overrides))
    return str(caught.value).split("\n")


# --- beginning --------------------------------------------------------------------------------------------------------


def test_a_run_begins_where_another_stands_and_goes_on_without_it(copy: Path, tmt: Tmt) -> None:
    done = tmt(*NEW, *SAME, "train.max_steps=1", "train.log_every=1")
    run, old = run_of(done), RunFolder(Path("runs/tiny"))
    best = old.checkpoint("best")
    assert f"begins with the weights of runs/tiny, step {best.step}" in done.stderr
    expected = loss_of(Translator.load(old.path, precision="fp32"))
    first = next(entry for entry in entries(run) if "train/loss" in entry)
    assert first["train/loss"] == pytest.approx(expected, rel=1e-5)
    assert expected < 0.98 * loss_of(untrained(run))

    assert run.tokenizer.read_bytes() == old.tokenizer.read_bytes()
    digest = hashlib.sha256((best.path / "model.safetensors").read_bytes()).hexdigest()
    about = {"path": "runs/tiny", "step": best.step, "sha256": digest}
    assert run.read_record()["provenance"]["init_from"] == about
    assert f"Started from the weights of runs/tiny, step {best.step}" in run.readme.read_text(encoding="utf-8")
    (adam,) = torch.load(run.checkpoint("last").path / "training.pt", weights_only=True)["optimizers"]
    assert {float(of["step"]) for of in adam["state"].values()} == {1.0}  # a fresh optimiser

    shutil.rmtree(old.path)
    again = tmt(*NEW, *SAME, "train.max_steps=2", "train.log_every=1")
    assert run_of(again).checkpoint("last").step == 2
    assert "begins with" not in again.stderr
    assert run.read_record()["provenance"]["init_from"] == about


def untrained(run: RunFolder) -> Translator:
    """A model as it comes, with the tokenizers of a run."""
    translator = Translator.load(run.path, precision="fp32")
    pair = translator.tokenizers
    return Translator([Transformer(translator.model.config, pair.src, pair.tgt).eval()], pair, translator.config)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_there_again(copy: Path, tmt: Tmt) -> None:
    run = run_of(tmt(*NEW, "train.max_steps=1"))
    ended = weights(Translator.load(run.path, precision="fp32").model)
    shutil.rmtree(run.checkpoints)
    run = run_of(tmt(*NEW, "train.max_steps=1"))
    assert all(
        torch.equal(ended[name], weight)
        for name, weight in weights(Translator.load(run.path, precision="fp32").model).items()
    )


def test_a_run_that_has_tokenizers_begins_with_no_others(copy: Path, tmt: Tmt) -> None:
    """The other run was trained anew, and its pieces have other numbers."""
    run = run_of(tmt(*NEW, "train.max_steps=1"))
    shutil.rmtree(run.checkpoints)
    other = copy / "runs" / "tiny" / "tokenizer.json"
    about = json.loads(other.read_text(encoding="utf-8"))
    other.write_text(json.dumps({**about, "source_bos": not about["source_bos"]}), encoding="utf-8")
    done = tmt(*NEW, "train.max_steps=1")
    assert done.returncode == 2
    assert "train.init_from: runs/tiny: has other tokenizers than when this run began" in done.stderr


def test_a_vocabulary_is_shown_as_it_would_be(copy: Path, tmt: Tmt) -> None:
    settings = ("tokenizer.sampling=0.1", "train.init_from=runs/tiny")
    new, old = (tmt("tokenize", *subject, "one two") for subject in (("tiny.yaml", *settings), ("runs/tiny",)))
    assert new.stdout == old.stdout != ""


# --- what fits --------------------------------------------------------------------------------------------------------


def test_every_weight_is_given(copy: Path) -> None:
    old = Translator.load("runs/tiny", precision="fp32")
    model = Transformer(old.model.config, old.tokenizers.src, old.tokenizers.tgt)
    state = torch.get_rng_state()
    origin = WarmStart.open(config_of("model.dropout.residual=0.5"))
    origin.give(model)
    assert torch.equal(state, torch.get_rng_state())  # what the seed decides does not move
    expected = weights(old.model)
    assert all(torch.equal(expected[name], weight) for name, weight in weights(model).items())
    assert origin.differences == ()


def test_an_output_projection_of_its_own_begins_as_the_shared_one(copy: Path) -> None:
    config = config_of("model.tie_embeddings=none")
    origin, old = WarmStart.open(config), Translator.load("runs/tiny", precision="fp32")
    model = Transformer(config.model, old.tokenizers.src, old.tokenizers.tgt)
    origin.give(model)
    assert model.output.weight is not model.decoder.embedding.tokens.weight
    assert torch.equal(model.output.weight, old.model.output.weight)
    assert origin.differences == ("model.tie_embeddings: ours none, theirs all",)


def test_other_heads_fit_and_are_named(copy: Path) -> None:
    origin = WarmStart.open(config_of("model.n_heads=4"))
    assert origin.differences == ("model.n_heads: ours 4, theirs 2",)
    assert origin.lines()[1].strip() == origin.differences[0]


ENCODER = "  encoder.layers.0.feed_forward"


@pytest.mark.parametrize(
    ("override", "parameters", "key"),
    [
        ("model.d_ff=48", [f"{ENCODER}.inner.weight: ours [48, 16], theirs [32, 16]"], "d_ff: ours 48, theirs 32"),
        (
            "model.encoder.n_layers=2",
            ["  encoder.layers.1.self_attention.output.weight: ours [16, 16], theirs none"],
            "encoder.n_layers: ours 2, theirs 1",
        ),
        (
            "model.feed_forward_bias=false",
            [f"{ENCODER}.inner.bias: ours none, theirs [32]", f"{ENCODER}.outer.bias: ours none, theirs [16]"],
            "feed_forward_bias: ours False, theirs True",
        ),
        (
            "model.positions=learned",
            ["  encoder.embedding.positions.table: ours [512, 16], theirs none"],
            "positions: ours learned, theirs sinusoidal",
        ),
    ],
)
def test_what_does_not_fit_is_named(copy: Path, override: str, parameters: list[str], key: str) -> None:
    lines = section_error(override)
    assert lines[0] == "train.init_from: runs/tiny: its weights do not fit this model:"
    assert set(parameters) <= set(lines)
    assert lines[-1] == f"  model.{key}"
    assert "(base: runs/tiny/config.yaml)" in lines[-2]


def test_only_some_of_many_misfits_are_named(copy: Path) -> None:
    lines = section_error("model.d_model=32")
    names = [line for line in lines if "ours [" in line]
    (more,) = (line for line in lines if " more" in line)
    assert len(names) + int(more.split()[1]) == len(
        list(Translator.load("runs/tiny", precision="fp32").model.parameters())
    )


def test_matrices_that_were_learnt_apart_cannot_become_one(copy: Path, tmt: Tmt) -> None:
    run_of(
        tmt("train", "--config", "tiny.yaml", "name=apart", "model.tie_embeddings=none", "train.max_steps=1"), "apart"
    )
    lines = section_error("train.init_from=runs/apart")
    assert "  output.weight: ours is encoder.embedding.tokens.weight, theirs another matrix" in lines
    assert lines[-1] == "  model.tie_embeddings: ours all, theirs none"


def test_settings_of_other_tokenizers_are_named(copy: Path) -> None:
    lines = section_error("tokenizer.vocab_size=400", "tokenizer.source_bos=true")
    assert lines[2:] == [
        "  tokenizer.vocab_size: ours 400, theirs 340",
        "  tokenizer.source_bos: ours True, theirs False",
    ]


# --- a refused start --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("train.init_from=runs",), "train.init_from: runs: is not a run folder"),
        (("train.init_from=nowhere",), "train.init_from: nowhere: no such run folder"),
        (("model.d_model=32",), "train.init_from: runs/tiny: its weights do not fit this model"),
        (("tokenizer.vocab_size=400",), "train.init_from: runs/tiny: its tokenizers come with its weights"),
    ],
)
def test_a_refused_start_leaves_nothing(copy: Path, tmt: Tmt, settings: tuple[str, ...], message: str) -> None:
    before = sorted(Path("runs").iterdir())
    done = tmt(*NEW, *settings)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert sorted(Path("runs").iterdir()) == before


def damage(run: RunFolder, how: str) -> None:
    if how == "no checkpoint":
        shutil.rmtree(run.checkpoints)
    elif how == "damaged":
        (run.checkpoint("best").path / "model.safetensors").write_bytes(b"no weights")
    else:
        run.record.write_text(json.dumps({**run.read_record(), "format": 99}), encoding="utf-8")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no checkpoint", "train.init_from: runs/tiny: has no checkpoint yet"),
        ("damaged", "model.safetensors: was truncated"),
        ("format", "train.init_from: runs/tiny: was written in run format 99"),
    ],
)
def test_a_run_that_cannot_be_begun_with(copy: Path, tmt: Tmt, how: str, message: str) -> None:
    damage(RunFolder(Path("runs/tiny")), how)
    done = tmt(*NEW)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not Path("runs/new").exists()


def test_a_run_does_not_begin_with_itself(copy: Path, tmt: Tmt) -> None:
    before = sorted(Path("runs").iterdir())
    done = tmt("train", "--config", "tiny.yaml", "--restart", "train.init_from=runs/tiny")
    assert (done.returncode, "is this run itself" in done.stderr) == (2, True), done.stderr
    assert sorted(Path("runs").iterdir()) == before


def test_nothing_is_cut_for_validation_that_the_other_has_learnt(copy: Path) -> None:
    """Its scores would flatter the model (trap 34)."""
    begun = WarmStart.open(configuration.load(Path("tiny.yaml"), ["train.init_from=runs/tiny"]))
    record = begun.run.read_record()
    text = record["sha256"]["train"]
    begun.check_cut({"train": text})
    with pytest.warns(match=r"runs/tiny has learnt from other text: .* name data\.validation to be sure"):
        begun.check_cut({"train": "another-rest-seed1-5"})
    with pytest.raises(UserError, match=r"runs/tiny: has learnt from pairs that are cut for validation here"):
        begun.check_cut({"train": f"{text}-rest-seed1-5"})
    metadata.write_metadata(begun.run, {**record, "sha256": {"train": f"{text}-rest-seed1-5"}})
    begun.check_cut({"train": f"{text}-rest-seed1-5"})
    with pytest.raises(UserError, match=r"set seed and data\.validation_size as there, or name data\.validation"):
        begun.check_cut({"train": f"{text}-rest-seed2-5"})
