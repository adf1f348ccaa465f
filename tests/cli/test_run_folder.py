"""Files in the folder of a trained run."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from helpers import Tmt, assert_user_error, load_plain, read_curves, read_events, read_folder, read_metrics
from safetensors.torch import load_file

from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.flows import configuration
from transformer_mt.runs import folder as runs
from transformer_mt.runs.folder import FORMAT, RunFolder
from transformer_mt.runs.records import read_manifest, write_manifest
from transformer_mt.training.metrics_logger import MetricsLogger

TRAIN = ("train", "--config", "tiny.yaml")


def test_the_run_folder_contains_the_documented_files(tiny_run: Path) -> None:
    promised = re.findall(r"^      (\S+?)/? ", str(runs.__doc__), re.MULTILINE)
    assert sorted(path.name for path in tiny_run.iterdir()) == sorted([".lock", *promised])
    in_checkpoint = re.findall(r"[\w.]+\.(?:safetensors|pt|json)\b", re.findall("checkpoints/.*", str(runs.__doc__))[0])
    assert sorted(path.name for path in (tiny_run / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    for checkpoint in (tiny_run / "checkpoints").iterdir():
        assert sorted(path.name for path in checkpoint.iterdir()) == sorted(in_checkpoint)


@pytest.mark.parametrize("near", ["checkpoints", "checkpoints/step-000012", "tensorboard", ".."])
def test_a_folder_near_a_run_is_refused_with_the_name_of_the_run(near: str, run_copy: Path, tmt: Tmt) -> None:
    path = Path("runs") if near == ".." else Path("runs/tiny") / near
    for command in (("translate", path, "a"), ("export", path, "--output", "out"), ("report", path)):
        assert_user_error(tmt(*map(str, command)), f"{path}: is not a run folder", "runs/tiny?")


def test_import_refuses_a_folder_that_is_already_a_run(run_copy: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("import", "runs/tiny", "--output", "out"), "runs/tiny: is a run already")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "command",
    [
        (*TRAIN, "runs_dir=runs/tiny"),
        (*TRAIN, "runs_dir=runs/tiny/more/runs"),
        ("export", "runs/tiny", "--output", "runs/tiny/new"),
        ("import", "nowhere", "--output", "runs/tiny/new"),
        ("init", "train.en", "train.de", "--from", "runs/tiny", "--out", "runs/tiny/new.yaml"),
        ("init", "--preset", "quickstart", "--out", "runs/tiny/config.yaml", "--force"),
    ],
)
def test_no_run_is_made_inside_a_run(command: tuple[str, ...], run_copy: Path, tmt: Tmt) -> None:
    """It would be copied, moved and deleted with the other one."""
    before = read_folder(run_copy)
    assert_user_error(tmt(*command), f"the run {run_copy}")
    assert read_folder(run_copy) == before


def test_checkpoints_load_without_pickle(tiny_run: Path) -> None:
    """Trap 39."""
    for checkpoint in (tiny_run / "checkpoints").iterdir():
        assert load_file(checkpoint / "model.safetensors")
        assert torch.load(checkpoint / "training.pt", weights_only=True)["progress"]["step"]


def test_the_saved_configuration_is_resolved_and_loads_again(in_tiny: Path, tiny_run: Path) -> None:
    saved, given = configuration.load(tiny_run / "config.yaml"), configuration.load(in_tiny / "tiny.yaml")
    assert "auto" not in (saved.device, saved.precision, saved.threads)
    assert saved == given.model_copy(update={"precision": saved.precision, "compile": "off"})


def test_run_json_records_versions_hardware_and_fingerprints(tiny_run: Path) -> None:
    record = json.loads((tiny_run / "run.json").read_text(encoding="utf-8"))
    assert record["format"] == FORMAT
    assert record["provenance"]["versions"]["torch"] == torch.__version__
    assert record["provenance"]["hardware"].endswith("cores")
    assert set(record["sha256"]) == {"train", "validation", "unseen"}
    assert record["ended"] == "train.max_steps 12 reached"


def test_the_readme_of_a_run_is_true(tiny_run: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    text = (tiny_run / "README.md").read_text(encoding="utf-8")
    record = json.loads((tiny_run / "run.json").read_text(encoding="utf-8"))
    weights = load_file(RunFolder(tiny_run).find_checkpoint("best").path / "model.safetensors")
    best = RunFolder(tiny_run).find_checkpoint("best")
    for fact in (
        "# tiny\n",
        "translates en into de",
        "1 + 1 layers, width 16, feed-forward 32, 2 heads, pre-norm",
        f"{sum(tensor.numel() for tensor in weights.values()):,} parameters",
        "Status: finished at step 12 of 12: train.max_steps 12 reached\n",
        "50 training pairs, ",
        "8 pairs in validation",
        f"Fingerprint of train: `{record['sha256']['train']}`",
        f"validation, at step {best.step} (the best by loss, greedy): loss {best.scores['loss']:.3f}",
        f"unseen, at step {best.step}: bleu {record['test']['unseen']['bleu']['value']:.2f} (`nrefs:1|",
        "\ntensorboard --logdir runs/tiny  ",
    ):
        assert fact in text
    commands = re.findall(r"^tmt .*?(?=  |$)", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        _, verb, *words = command.split()
        files = {"F": "valid.en", "G": "valid.de" if verb == "evaluate" else str(tmp_path / "g")}
        done = tmt(verb, *[files.get(word, word) for word in words], stdin=b"one\n")
        assert done.returncode == 0, done.stderr


def test_metrics_file_and_tensorboard_have_the_same_values(tiny_run: Path) -> None:
    in_file, on_board = read_metrics(tiny_run), read_curves(tiny_run)
    assert set(on_board) == set(in_file)
    for name, by_step in on_board.items():
        assert by_step == pytest.approx(in_file[name], rel=1e-6)


def test_metrics_are_recorded_at_the_configured_steps(tiny_run: Path) -> None:
    found = read_metrics(tiny_run)
    train = [
        "loss",
        "nll",
        "ppl",
        "learning_rate",
        "gradient_norm",
        "tokens_per_second",
        "padding",
        "skipped_steps",
        "epoch",
        "hours",
    ]
    for name in train:
        assert list(found[f"train/{name}"]) == [3, 6, 9, 12]
    assert sorted(found["train/hours"].values()) == list(found["train/hours"].values())
    validated = ("loss", "nll", "ppl", "bleu", "chrf", "degenerate")
    for name in validated:
        assert list(found[f"valid/{name}"]) == [4, 8, 12]
    assert set(found["test/unseen/bleu"]) == set(found["test/unseen/chrf"]) == {12}
    saved = RunFolder(tiny_run).find_checkpoint("8").scores
    assert saved == {name: found[f"valid/{name}"][8] for name in validated}
    for part in ("train", "valid"):
        loss, nll, ppl = (found[f"{part}/{name}"] for name in ("loss", "nll", "ppl"))
        for step, value in ppl.items():
            assert value == pytest.approx(math.exp(nll[step])) and loss[step] != nll[step]


@pytest.mark.slow
def test_validation_scores_unknown_words_like_translate(run_copy: Path, tmt: Tmt) -> None:
    """Trap 37: the validation during training scores the same text that `tmt translate` prints."""
    longer = ("train.max_steps=40", "validation.every=20", "schedule.peak=1e-2")
    done = tmt(*TRAIN, "name=words", "tokenizer.kind=word", "tokenizer.vocab_size=6", "precision=fp32", *longer)
    assert done.returncode == 0, done.stderr
    run = RunFolder(run_copy.parent / "words")
    for_validation = ("--checkpoint", "last", "--precision", "fp32", "--beam", 1, "--min-length", 0)
    printed = tmt("translate", run.path, "--input", "valid.en", *for_validation).stdout
    assert "⁇" in printed
    references = Path("valid.de").read_text(encoding="utf-8").splitlines()
    expected = Scorer("13a", "de").score(printed.splitlines(), references)
    assert run.find_checkpoint("last").scores["chrf"] == pytest.approx(expected["chrF"].value) != 0.0


@pytest.mark.slow
def test_the_best_checkpoint_is_the_default(run_copy: Path, tmt: Tmt) -> None:
    """Translation, test sets and warm starts use it. The test first gives the last checkpoint a bad loss."""
    last = RunFolder(run_copy).find_checkpoint("last").path / "checkpoint.json"
    about = read_manifest(last)
    write_manifest(last, {**about, "scores": {**about["scores"], "loss": 99.0}})
    assert load_plain(run_copy).runs[0].step == 8
    assert "step 8" in tmt("evaluate", run_copy).stdout
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    assert record["tested"]["step"] == 12
    done = tmt("train", "--config", "tiny.yaml", "name=next", f"train.init_from={run_copy}", "train.max_steps=1")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"{run_copy}, step 8\b", done.stderr)
    assert tmt("train", "--config", "tiny.yaml").returncode == 0
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    assert record["tested"]["step"] == 8
    scored = json.loads(tmt("evaluate", run_copy, "--checkpoint", 8, "--json").stdout)
    assert record["test"]["unseen"]["bleu"]["value"] == pytest.approx(
        scored["test_sets"]["unseen"]["metrics"]["bleu"]["value"]
    )


def test_tensorboard_shows_samples(tiny_run: Path) -> None:
    on_board = read_events(tiny_run)
    shown = on_board.Tensors("translations/examples")
    assert [event.step for event in shown] == [4, 8, 12]
    table = shown[-1].tensor_proto.string_val[0].decode()
    assert table.startswith("| source | model | reference |")
    assert table.count("\n") == 3


def test_the_curves_of_a_start_that_was_repeated_are_hidden(tmp_path: Path) -> None:
    for loss in (3.0, 2.0, 1.0):  # killed before its first checkpoint, and after that of step 0
        with MetricsLogger(RunFolder(tmp_path), None) as logger:
            if loss == 1.0:
                logger.truncate(0, is_scored=False)
            logger.log_scalars(1, {"train/loss": loss})
            logger.log_markdown(1, "samples", "text")
    assert read_curves(tmp_path)["train/loss"] == {1: 1.0}


@pytest.mark.parametrize(
    ("setting", "command", "n_lines"),
    [
        ("decoding.length_penalty: gnmt", "translate", 1),
        ("decoding.length_penalty: average", "translate", 0),
        ("decoding.repetition_penalty: 1.2", "translate", 1),
        ("decoding.repetition_penalty: 1.0", "translate", 0),
        ("decoding.no_repeat_ngram: 0", "translate", 0),
        ("loss.consistency: rdrop", "translate", 0),  # translation is the same without it
        ("loss.consistency: rdrop", "resume", 1),
        ("loss.consistency: none", "resume", 0),
        ("decoding.length_penalty: gnmt", "resume", 1),
        ("model.init: xavier", "resume", 0),
        ("model.layer_drop: 0.1", "fine-tune", 1),
        ("model.layer_drop: 0.05", "fine-tune", 1),  # the default of another key
        ("model.layer_drop: 0.0", "fine-tune", 0),
        ("optimizer.ema_decay: null", "fine-tune", 0),
    ],
)
def test_a_removed_setting_that_was_in_effect_is_logged_once(
    setting: str, command: str, n_lines: int, run_copy: Path, tmt: Tmt
) -> None:
    config, (section, _, key) = run_copy / "config.yaml", setting.partition(".")
    text = re.sub(rf"(?m)^({section}:.*\n)", rf"\g<1>  {key}\n", config.read_text(encoding="utf-8"))
    config.write_text(text, encoding="utf-8")
    Path("tuned.yaml").write_text(f"base: {config}\nname: tuned\ntrain: {{max_steps: 1}}\n", encoding="utf-8")
    arguments = {
        "translate": ("translate", run_copy, "one two"),
        "resume": ("train", "--config", config, "train.max_steps=13"),
        "fine-tune": ("train", "--config", "tuned.yaml"),
    }
    done = tmt(*arguments[command])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(setting) == n_lines
