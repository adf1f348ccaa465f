"""What a person types, and what they are told: every verb on one tiny run, and every wrong input."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, Any, NoReturn

import pytest
import torch
from helpers import Tmt, assert_user_error, read_folder
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import transformer_mt
from transformer_mt import Translator
from transformer_mt.config import root as configuration
from transformer_mt.config.rendering import render_yaml
from transformer_mt.errors import Interrupted
from transformer_mt.evaluation.metrics import Scorer
from transformer_mt.runs import folder as runs
from transformer_mt.runs.folder import FORMAT, RunFolder
from transformer_mt.runs.manifest import read_manifest, write_manifest
from transformer_mt.training.trainer import Trainer

TRAIN = ("train", "--config", "tiny.yaml")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
SENTENCES = ["one two three", "three two one", "eight"]


@pytest.fixture
def translator(tiny_run: Path) -> Translator:
    return Translator.load(tiny_run)


def subprocess_tmt(*arguments: object, **options: Any) -> CompletedProcess[bytes]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, env=ONE_THREAD, **options)


# --- translate --------------------------------------------------------------------------------------------------------


def test_translate_arguments(tiny_run: Path, tmt: Tmt, translator: Translator) -> None:
    done = tmt("translate", tiny_run, "one two three", "", "two\nthree", "\t")
    assert done.returncode == 0
    assert done.stdout.split("\n") == [*translator.translate(["one two three", "", "two", "three", ""]), ""]


def test_every_way_in_and_out_is_the_same(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    text = "".join(f"{sentence}\n" for sentence in SENTENCES).encode()
    (tmp_path / "f").write_bytes(text)
    (tmp_path / "f.gz").write_bytes(gzip.compress(text))
    expected = tmt("translate", tiny_run, *SENTENCES).stdout
    assert len(expected.split("\n")) == 4
    assert tmt("translate", tiny_run, stdin=text).stdout == expected
    assert tmt("translate", tiny_run, stdin=text.rstrip()).stdout == expected
    assert tmt("translate", tiny_run, "--input", tmp_path / "f").stdout == expected
    assert tmt("translate", tiny_run, "--input", tmp_path / "f.gz").stdout == expected
    assert tmt("translate", tiny_run, *SENTENCES, "--output", tmp_path / "g").stdout == ""
    assert (tmp_path / "g").read_text(encoding="utf-8") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "f.gz", "g"]


def test_nothing_in_is_nothing_out(tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, stdin=b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HARD_LINES = [
    "one two",
    "",
    " \t ",
    "nul \x00 byte",
    "line \u2028 and paragraph \u2029",
    "next \x85 line, \x0b tab, \x0c feed",
    "carriage \r return",
    "\x1b[31m bell \x07",
    "</s> <s> <pad> <0x0A>",
    "\U0001f600 \u0301 \u202e \ufeff",
]


def test_line_n_in_is_line_n_out(tiny_run: Path, tmt: Tmt, translator: Translator, tmp_path: Path) -> None:
    """Three windows of lines that a careless reader would split, join or drop."""
    lines = [HARD_LINES[n * n % 7 * n % len(HARD_LINES)] for n in range(3000)]
    alone = {line: translator.translate([line])[0] for line in HARD_LINES}
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "f").write_bytes(text)
    assert tmt("translate", tiny_run, "--input", tmp_path / "f", "--output", tmp_path / "g").returncode == 0
    translated = (tmp_path / "g").read_bytes()
    assert translated.count(b"\n") == 3000
    assert translated.decode().split("\n")[:-1] == [alone[line] for line in lines]
    assert tmt("translate", tiny_run, stdin=text).stdout == translated.decode()


def test_bad_bytes_keep_the_lines_before_them(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    lines = [b"one two\n"] * 2499 + [b"na\xefve\n"] + [b"three\n"] * 9
    (tmp_path / "f").write_bytes(b"".join(lines))
    done = tmt("translate", tiny_run, "--input", tmp_path / "f", "--output", tmp_path / "g")
    assert_user_error(done, f"{tmp_path}/f:2500: not UTF-8 text (byte 0xef at position 3)")
    assert not (tmp_path / "g").exists()
    kept = (tmp_path / "g.part").read_bytes()
    assert kept == tmt("translate", tiny_run, "one two").stdout.encode() * 2499
    done = tmt("translate", tiny_run, stdin=b"".join(lines))
    assert_user_error(done, "standard input:2500: not UTF-8 text")
    assert done.stdout.encode() == kept


def test_a_failed_translation_leaves_the_earlier_file(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\n\xff\n")
    (tmp_path / "g").write_text("earlier")
    assert_user_error(
        tmt("translate", tiny_run, "--input", tmp_path / "f", "--output", tmp_path / "g"), "f:2: not UTF-8"
    )
    assert (tmp_path / "g").read_text() == "earlier"


@pytest.mark.filterwarnings("default::transformer_mt.decoding.text_translator.TruncatedSourceWarning")
def test_a_source_that_is_too_long_is_cut_with_a_warning(run_copy: Path, tmt: Tmt) -> None:
    run = RunFolder(run_copy)
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("max_source_length: 1024", "max_source_length: 3"), encoding="utf-8")
    text = b"one two three\n\none two three four five\n"
    done = tmt("translate", run_copy, "--split-sentences", "never", stdin=text)
    assert done.returncode == 0
    first, blank, third, end = done.stdout.split("\n")
    assert (first, blank, end) == (third, "", "")
    assert re.fullmatch(r"tmt: warning: line 3 has \d+ tokens and was cut to 3\n", done.stderr)


def test_a_long_line_is_translated_sentence_by_sentence(run_copy: Path, tmt: Tmt, translator: Translator) -> None:
    run = RunFolder(run_copy)
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("max_length: 256", "max_length: 40"), encoding="utf-8")
    short, long = "One. Two.  Three.", "One two three! Two. " * 9 + " Eight."
    done = tmt("translate", run_copy, short, long)
    assert (done.returncode, done.stderr) == (0, "")
    one, two, eight = translator.translate(["One two three!", "Two.", "Eight."])
    expected = [*translator.translate([short]), f"{one} {two} " * 8 + f"{one} {two}  {eight}"]
    assert done.stdout.split("\n")[:-1] == expected
    done = tmt("translate", run_copy, short, "--split-sentences", "always")
    three = translator.translate(["One.", "Two.", "Three."])
    assert done.stdout == "{} {}  {}\n".format(*three)


def test_nothing_of_a_long_line_is_cut_off(run_copy: Path, tmt: Tmt) -> None:
    """Also where no sentence ends."""
    run = RunFolder(run_copy)
    text = run.config.read_text(encoding="utf-8")
    run.config.write_text(text.replace("max_source_length: 1024", "max_source_length: 3"), encoding="utf-8")
    done = tmt("translate", run_copy, "one two three four five six one two three four five six")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) > 6


@pytest.mark.filterwarnings("default::transformer_mt.decoding.text_translator.TruncatedSourceWarning")
def test_learned_positions_end_where_they_end(in_tiny: Path, tmt: Tmt) -> None:
    """Validation pairs and sources beyond the last position are cut, and no translation grows past it."""
    settings = [
        "name=learned",
        "model={d_model: 16, d_ff: 32, n_heads: 2, positions: learned, max_positions: 3}",
        "data.max_length=3",
        "data.too_long=truncate",
        "decoding={max_length_factor: 3}",
        "train.max_steps=2",
    ]
    done = tmt("train", "--config", "tiny.yaml", *settings)
    assert done.returncode == 0, done.stderr
    assert "truncated" in done.stderr
    text = "one two three four five six eight one two three four five"
    done = tmt("translate", "runs/learned", text, "--split-sentences", "never")
    assert done.returncode == 0
    assert re.fullmatch(r"tmt: warning: line 1 has \d+ tokens and was cut to 2\n", done.stderr)


@pytest.mark.parametrize("which", ["best", "last", "8", "12"])
def test_a_checkpoint_of_choice(which: str, tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, *SENTENCES, "--checkpoint", which)
    assert done.stdout.split("\n")[:-1] == Translator.load(tiny_run, which).translate(SENTENCES)


@pytest.mark.slow
def test_a_prompt_answers_line_by_line(tiny_run: Path, translator: Translator) -> None:
    keyboard, terminal = pty.openpty()
    command = [sys.executable, "-m", "transformer_mt", "translate", str(tiny_run)]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=ONE_THREAD) as process:
        os.close(terminal)
        shown = b""
        for typed in ("one two\n", "\n", "three\n", "\x04"):
            while not shown.endswith(b"> "):
                shown += os.read(keyboard, 4096)  # an error once the program has ended
            os.write(keyboard, typed.encode())
            shown += b"\n"
        assert process.wait() == 0
    os.close(keyboard)
    for translation in translator.translate(["one two", "three"]):
        assert translation in shown.decode()


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_mistake(tiny_run: Path) -> None:
    command = f"{sys.executable} -m transformer_mt translate {tiny_run}"
    script = f"yes one two | head -40000 | {command} | head -1; exit ${{PIPESTATUS[2]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=ONE_THREAD)
    assert done.returncode == 141
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


@pytest.mark.slow
def test_standard_output_on_a_full_disk(tiny_run: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess_tmt("translate", tiny_run, "one two", stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("tmt: <stdout>: No space left on device")
    assert done.stderr.count(b"\n") == 1


def test_python(tiny_run: Path, tmt: Tmt) -> None:
    assert transformer_mt.Translator is Translator
    found = Translator.load(str(tiny_run)).translate(SENTENCES)
    assert "\n".join([*found, ""]) == tmt("translate", tiny_run, *SENTENCES).stdout
    assert Translator.load(tiny_run).translate([]) == []
    with pytest.raises(AttributeError, match="no attribute 'Tanslator'"):
        transformer_mt.Tanslator  # noqa: B018  # pyright: ignore


def test_a_run_translates_without_its_data(tiny_run: Path, tmp_path: Path, tmt: Tmt) -> None:
    moved = shutil.copytree(tiny_run, tmp_path / "elsewhere")
    assert tmt("translate", moved, *SENTENCES).stdout == tmt("translate", tiny_run, *SENTENCES).stdout
    assert read_folder(moved) == read_folder(tiny_run)


# --- config -----------------------------------------------------------------------------------------------------------


def test_config_prints_what_loads_again(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    done = tmt("config", "tiny.yaml", "seed=7", "schedule.peak=1e-4")
    (tmp_path / "again.yaml").write_text(done.stdout, encoding="utf-8")
    again = configuration.load(tmp_path / "again.yaml")
    assert again == configuration.load(in_tiny / "tiny.yaml", ["seed=7", "schedule.peak=1e-4"])
    assert (again.seed, again.schedule.peak, again.name) == (7, 1e-4, "tiny")
    assert tmt("config", tmp_path / "again.yaml").stdout == done.stdout


def test_config_without_a_file_is_the_quickstart(tmt: Tmt) -> None:
    quickstart = configuration.load(configuration.builtin_path("quickstart"))
    assert tmt("config").stdout == render_yaml(quickstart)
    assert tmt("config", "seed=7").stdout == render_yaml(quickstart.model_copy(update={"seed": 7}))


def test_an_override_may_be_longer_than_a_file_name(tmt: Tmt) -> None:
    done = tmt("config", f"tokenizer.normalization=[{', '.join(['NFC'] * 100)}]")
    assert done.returncode == 0, done.stderr


def test_config_prints_the_schema(tmt: Tmt) -> None:
    assert tmt("config", "--schema").stdout == configuration.json_schema()


def test_version_and_help(tmt: Tmt) -> None:
    assert tmt("--version").stdout == f"tmt {transformer_mt.__version__}\n"
    assert all(verb in tmt("--help").stdout for verb in ("train", "translate", "evaluate", "export", "average"))


# --- the run folder ---------------------------------------------------------------------------------------------------


def test_the_run_folder_holds_what_is_said_of_it(tiny_run: Path) -> None:
    promised = re.findall(r"^      (\S+?)/? ", str(runs.__doc__), re.MULTILINE)
    assert sorted(path.name for path in tiny_run.iterdir()) == sorted([".lock", *promised])
    in_checkpoint = re.findall(r"[\w.]+\.(?:safetensors|pt|json)\b", re.findall("checkpoints/.*", str(runs.__doc__))[0])
    assert sorted(path.name for path in (tiny_run / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    for checkpoint in (tiny_run / "checkpoints").iterdir():
        assert sorted(path.name for path in checkpoint.iterdir()) == sorted(in_checkpoint)


def test_everything_loads_without_pickle(tiny_run: Path) -> None:
    """Trap 39."""
    for checkpoint in (tiny_run / "checkpoints").iterdir():
        assert load_file(checkpoint / "model.safetensors")
        assert torch.load(checkpoint / "training.pt", weights_only=True)["progress"]["step"]


def test_the_saved_configuration_is_resolved_and_loads_again(in_tiny: Path, tiny_run: Path) -> None:
    saved, given = configuration.load(tiny_run / "config.yaml"), configuration.load(in_tiny / "tiny.yaml")
    assert "auto" not in (saved.device, saved.precision, saved.threads)
    assert saved == given.model_copy(update={"precision": saved.precision})


def test_the_record_says_whence_the_run_comes(tiny_run: Path) -> None:
    record = json.loads((tiny_run / "run.json").read_text(encoding="utf-8"))
    assert record["format"] == FORMAT
    assert record["provenance"]["versions"]["torch"] == torch.__version__
    assert record["provenance"]["hardware"].endswith("cores")
    assert set(record["sha256"]) == {"train", "validation", "unseen"}
    assert record["ended"] == "train.max_steps 12 reached"


def test_the_readme_is_true(tiny_run: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    text = (tiny_run / "README.md").read_text(encoding="utf-8")
    record = json.loads((tiny_run / "run.json").read_text(encoding="utf-8"))
    weights = load_file(RunFolder(tiny_run).find_checkpoint("best").path / "model.safetensors")
    best = RunFolder(tiny_run).find_checkpoint("best")
    for fact in (
        "# tiny\n",
        "translates en into de",
        "1 + 1 layers, width 16, feed-forward 32, 2 heads, pre-norm",
        f"{sum(tensor.numel() for tensor in weights.values()):,} parameters",
        "Status: train.max_steps 12 reached (step 12)\n",
        "50 training pairs, ",
        "8 pairs in validation",
        f"Fingerprint of train: `{record['sha256']['train']}`",
        f"validation, at step {best.step} (the best by loss, greedy): loss {best.scores['loss']:.3f}",
        f"unseen, at step {best.step}: bleu {record['test']['unseen']['bleu']['value']:.2f} (`nrefs:1|",
    ):
        assert fact in text
    commands = re.findall(r"^tmt .*?(?=  |$)", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        _, verb, *words = command.split()
        files = {"F": "valid.en", "G": "valid.de" if verb == "evaluate" else str(tmp_path / "g")}
        done = tmt(verb, *[files.get(word, word) for word in words], stdin=b"one\n")
        assert done.returncode == 0, done.stderr


def figures(run: Path) -> dict[str, dict[int, float]]:
    """What metrics.jsonl holds, by name and step."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        step = entry.pop("step")
        for name, value in entry.items():
            assert step not in found[name], f"{name} stands twice at step {step}"
            found[name][step] = value
    return dict(found)


def events(run: Path) -> Any:
    """What TensorBoard reads."""
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def test_metrics_and_tensorboard_carry_the_same_figures(tiny_run: Path) -> None:
    in_file, on_board = figures(tiny_run), events(tiny_run)
    assert set(on_board.Tags()["scalars"]) == set(in_file)
    for name, by_step in in_file.items():
        scalars = on_board.Scalars(name)
        assert [event.step for event in scalars] == list(by_step)
        assert [event.value for event in scalars] == pytest.approx(list(by_step.values()), rel=1e-6)


def test_the_figures_that_are_kept(tiny_run: Path) -> None:
    found = figures(tiny_run)
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
    losses = list(found["valid/loss"].values())
    assert list(found["best/loss"].values()) == [one for i, one in enumerate(losses) if one <= min(losses[: i + 1])]


def test_unknown_words_count_alike_everywhere(run_copy: Path, tmt: Tmt) -> None:
    """Trap 37: what is scored while training is what is translated."""
    longer = ("train.max_steps=40", "validation.every=20", "schedule.peak=1e-2")
    done = tmt(*TRAIN, "name=words", "tokenizer.kind=word", "tokenizer.vocab_size=6", "precision=fp32", *longer)
    assert done.returncode == 0, done.stderr
    run = RunFolder(run_copy.parent / "words")
    for_validation = ("--checkpoint", "last", "--precision", "fp32", "--beam", 1, "--min-length", 0)
    said = tmt("translate", run.path, "--input", "valid.en", *for_validation).stdout
    assert "⁇" in said
    references = Path("valid.de").read_text(encoding="utf-8").splitlines()
    wanted = Scorer("13a", "de").score(said.splitlines(), references)
    assert run.find_checkpoint("last").scores["chrf"] == pytest.approx(wanted.chrf.value) != 0.0


def test_the_best_checkpoint_is_what_is_used(run_copy: Path, tmt: Tmt) -> None:
    """Also by the test sets, and by a run that begins with it; in the run as it is, the best one is the last."""
    last = RunFolder(run_copy).find_checkpoint("last").path / "checkpoint.json"
    about = read_manifest(last)
    write_manifest(last, {**about, "scores": {**about["scores"], "loss": 99.0}})
    assert Translator.load(run_copy).members[0].step == 8
    assert "step 8" in tmt("evaluate", run_copy).stdout
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    assert record["tested"]["step"] == 12
    done = tmt("train", "--config", "tiny.yaml", "name=next", f"train.init_from={run_copy}", "train.max_steps=1")
    assert done.returncode == 0, done.stderr
    assert f"begins with the weights of {run_copy}, step 8" in done.stderr
    assert tmt("train", "--config", "tiny.yaml").returncode == 0
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    assert record["tested"]["step"] == 8
    scored = json.loads(tmt("evaluate", run_copy, "--checkpoint", 8, "--json").stdout)
    assert record["test"]["unseen"]["bleu"]["value"] == pytest.approx(
        scored["test_sets"]["unseen"]["metrics"]["bleu"]["value"]
    )


def test_tensorboard_holds_probes_and_settings(tiny_run: Path) -> None:
    on_board = events(tiny_run)
    shown = on_board.Tensors("validation/text_summary")
    assert [event.step for event in shown] == [4, 8, 12]
    table = shown[-1].tensor_proto.string_val[0].decode()
    assert table.startswith("| source | model | reference |")
    assert table.count("\n") == 3
    from tensorboard.plugins.hparams import plugin_data_pb2

    messages: Any = plugin_data_pb2
    data = on_board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = messages.HParamsPluginData.FromString(data).session_start_info.hparams
    assert settings["model.d_model"].number_value == 16
    assert settings["schedule.kind"].string_value == "inverse_sqrt"


# --- train ------------------------------------------------------------------------------------------------------------


def test_what_is_said_while_training(tiny_run: Path, in_tiny: Path) -> None:
    said = (in_tiny / "train.log").read_text(encoding="utf-8").split("\n")
    assert said[:3] == [
        "data: 50 training pairs, 150 source and 150 target tokens (3.0 and 3.0 a sentence)",
        "data: 8 pairs in validation",
        "data: 6 pairs in unseen",
    ]
    assert any(re.fullmatch(r"step 3 of 12  loss \d\.\d+  ppl [\d.]+  [\d,]+ tokens/s  .* left", line) for line in said)
    assert any(re.match(r"step 4  validation  loss .* bleu .*\(best so far\)", line) for line in said)
    assert sum(line.startswith("  reference  ") for line in said) == 3 * 2
    ended = r"training ended: train.max_steps 12 reached; hours in all: \d\.\d\d"
    assert any(re.fullmatch(ended, line) for line in said)
    assert said[-2] == "the run is in runs/tiny; its README.md says what to type next"


def test_the_same_command_again_returns_at_once(run_copy: Path, tmt: Tmt) -> None:
    before, curves = read_folder(run_copy), events(run_copy)
    done = tmt(*TRAIN)
    assert done.returncode == 0
    assert "going on after step 12" in done.stderr
    after = read_folder(run_copy)
    differing = {name for name in {**before, **after} if before.get(name) != after.get(name)}
    assert all(name.startswith("tensorboard/") for name in differing)  # the scores of test sets move to a new file
    for name in curves.Tags()["scalars"]:
        found, kept = ([(at.step, at.value) for at in board.Scalars(name)] for board in (events(run_copy), curves))
        assert found == kept


def test_a_longer_run_goes_on(run_copy: Path, tmt: Tmt) -> None:
    done = tmt(*TRAIN, "train.max_steps=14", "threads=2")
    assert done.returncode == 0
    assert "threads: 1 -> 2\ntrain.max_steps: 12 -> 14\n" in done.stderr
    assert "device or threads changed: results may now differ in the last bits" in done.stderr
    assert list(figures(run_copy)["valid/loss"]) == [4, 8, 12, 14]
    assert "train.max_steps 14 reached" in (run_copy / "README.md").read_text(encoding="utf-8")


def test_threads_are_counted_anew_where_another_number_of_processes_shares_them(
    run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same number they stay as they were, whatever machine it is: the bits depend on them."""

    def go_on(processes: int, cores: int, max_steps: int) -> object:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
        done = tmt(*TRAIN, "name=shared", "threads=auto", f"train.max_steps={max_steps}")
        assert done.returncode == 0, done.stderr
        return configuration.load(run_copy.with_name("shared") / "config.yaml").threads

    assert [go_on(2, 4, 1), go_on(2, 8, 2)] == [2, 2]
    assert [go_on(1, 8, 3), go_on(1, 4, 4)] == [1, 1]  # torch's own default, here
    assert go_on(4, 12, 5) == 3


def test_going_on_from_an_earlier_checkpoint(run_copy: Path, tmt: Tmt) -> None:
    expected = load_file(RunFolder(run_copy).find_checkpoint("12").path / "model.safetensors")
    done = tmt(*TRAIN, "--checkpoint", "8")
    assert done.returncode == 0
    assert "going on after step 8\n" in done.stderr
    assert list(figures(run_copy)["valid/loss"]) == [4, 8, 12]
    again = load_file(RunFolder(run_copy).find_checkpoint("12").path / "model.safetensors")
    assert all(torch.equal(again[name], expected[name]) for name in expected)


def test_a_run_that_has_gone_back_is_not_at_its_end(run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch) -> None:
    """So says its README, whose scores are then of checkpoints that are there."""

    def fit(_: Trainer) -> NoReturn:
        raise Interrupted(15, "")

    monkeypatch.setattr(Trainer, "fit", fit)
    card = (run_copy / "README.md").read_text(encoding="utf-8")
    assert "Status: train.max_steps 12 reached (step 12)\n" in card and "unseen, at step " in card
    assert tmt(*TRAIN, "--checkpoint", "8").returncode == 128 + 15
    card = (run_copy / "README.md").read_text(encoding="utf-8")
    assert "Status: in training, or interrupted" in card
    assert "step 12" not in card and "unseen" not in card.partition("## Scores")[2]


def test_an_unknown_checkpoint_deletes_nothing(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy / "checkpoints")
    assert_user_error(tmt(*TRAIN, "--checkpoint", "9"), "best, last and the steps 8, 12")
    assert_user_error(tmt(*TRAIN, "name=new", "--checkpoint", "8"), "new: has no checkpoint yet")
    assert not Path("runs/new").exists()
    assert read_folder(run_copy / "checkpoints") == before


def test_going_back_to_what_cannot_be_read_deletes_nothing(run_copy: Path, tmt: Tmt) -> None:
    """A whole checkpoint whose progress is that of another version; nor is the run's end forgotten."""
    folder = run_copy / "checkpoints" / "step-000008"
    state: dict[str, Any] = torch.load(folder / "training.pt", weights_only=True)
    torch.save({**state, "progress": {"since": "another version"}}, folder / "training.pt")
    about = json.loads((folder / "checkpoint.json").read_text())
    write_manifest(folder / "checkpoint.json", {key: about[key] for key in ("step", "metric", "scores", "stopped")})
    before = read_folder(run_copy / "checkpoints"), figures(run_copy)
    assert_user_error(tmt(*TRAIN, "--checkpoint", "8"), "step-000008: another version of this program has trained it")
    assert (read_folder(run_copy / "checkpoints"), figures(run_copy)) == before
    assert RunFolder(run_copy).read_record()["ended"]


def test_other_settings_are_refused_and_listed(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    done = tmt(*TRAIN, "model.d_ff=64", "seed=7", "keep.last=9")
    refused_lines = done.stderr[done.stderr.index("tmt: ") :].split("\n")
    assert done.returncode == 2
    assert refused_lines == [
        "tmt: runs/tiny: this run was begun with other settings:",
        "  seed: 1 -> 7",
        "  model.d_ff: 32 -> 64",
        "name another run (name=...), or begin this one anew with --restart (the old one is moved aside)",
        "",
    ]
    assert read_folder(run_copy) == before


def test_other_text_is_refused(run_copy: Path, tmt: Tmt) -> None:
    Path("train.de").write_text(Path("train.de").read_text().replace("eins", "ein"))
    before = read_folder(run_copy)
    assert_user_error(tmt(*TRAIN), "the text of the data has changed", "--restart")
    assert read_folder(run_copy) == before


def test_restart_moves_the_old_run_aside(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    done = tmt(*TRAIN, "--restart", "train.max_steps=1", "seed=7")
    assert done.returncode == 0
    (aside,) = run_copy.parent.glob("tiny.*")
    assert f"the old run is now {aside.relative_to(Path.cwd())}" in done.stderr
    assert read_folder(aside) == before
    assert [info.step for info in RunFolder(run_copy).list_checkpoints()] == [1]


def test_a_restart_that_is_refused_leaves_the_old_run(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    missing = "data.train={src: missing.en, tgt: train.de}"
    refusals = {missing: "missing.en: no such file", "device=cuda:99": "device: cuda:99 is not available"}
    for change, reason in refusals.items():
        done = tmt(*TRAIN, "--restart", change)
        assert_user_error(done, reason)
        assert "no new run was begun, and the old one is runs/tiny again" in done.stderr
        assert [*run_copy.parent.glob("tiny*")] == [run_copy]
        assert read_folder(run_copy) == before


def test_a_restart_goes_on_from_no_checkpoint(run_copy: Path, tmt: Tmt) -> None:
    before = read_folder(run_copy)
    done = tmt(*TRAIN, "--restart", "--checkpoint", "8")
    assert_user_error(done, "--checkpoint: not allowed with argument --restart")
    assert read_folder(run_copy) == before


def test_another_search_scores_the_test_sets_anew(run_copy: Path, tmt: Tmt) -> None:
    """Not one that translates as before."""
    before = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    for change in ("decoding.batch_tokens=64", "decoding.beam=1"):
        done = tmt(*TRAIN, change)
        assert done.returncode == 0, done.stderr
        assert ("unseen (" in done.stderr) == (change == "decoding.beam=1")
    record = json.loads((run_copy / "run.json").read_text(encoding="utf-8"))
    assert record["tested"] == {"step": 12, "decoding": {**before["tested"]["decoding"], "beam": 1}}


def test_another_process_holds_the_run(run_copy: Path, tmt: Tmt) -> None:
    with RunFolder(run_copy).locked():
        assert_user_error(tmt(*TRAIN), f"runs/tiny: another process is training this run (process {os.getpid()} on ")


def set_format(run: Path, version: int) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps({**record, "format": version}), encoding="utf-8")


@pytest.mark.parametrize("command", [TRAIN, ("translate", "runs/tiny", "one"), ("evaluate", "runs/tiny")])
def test_another_run_format(command: tuple[str, ...], run_copy: Path, tmt: Tmt) -> None:
    set_format(run_copy, FORMAT + 1)
    message = f"runs/tiny: was written in run format {FORMAT + 1}, and this program reads formats 3 and {FORMAT}"
    assert_user_error(tmt(*command), message, "--restart")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "step-000014: the checkpoint cannot be written: No space left on device",
        ),
        (RuntimeError("unexpected pos 704"), "step-000014: the checkpoint cannot be written: unexpected pos 704"),
    ],
)
def test_a_disk_that_is_full_while_saving(
    error: Exception, said: str, run_copy: Path, tmt: Tmt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing half-written is left, and the same command goes on when there is room again."""
    before = read_folder(run_copy / "checkpoints")

    def save(_: object, file: IO[bytes]) -> NoReturn:
        file.write(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        assert_user_error(tmt(*TRAIN, "train.max_steps=14"), said, "run the same command again to resume")
    assert read_folder(run_copy / "checkpoints") == before
    assert tmt(*TRAIN, "train.max_steps=14").returncode == 0
    assert list(figures(run_copy)["valid/loss"]) == [4, 8, 12, 14]


def test_a_read_only_disk(in_tiny: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(path: Path, *_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    assert_user_error(tmt(*TRAIN, f"runs_dir={tmp_path}/runs"), f"{tmp_path}/runs/tiny: Read-only file system")


@pytest.mark.parametrize("runs_dir", ["/proc/nowhere", "train.en", "/dev/null"])
def test_a_place_that_cannot_hold_runs(runs_dir: str, in_tiny: Path, tmt: Tmt) -> None:
    assert_user_error(tmt(*TRAIN, f"runs_dir={runs_dir}"), f"{runs_dir}")


# --- wrong data -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that no training can use."""
    folder = tmp_path_factory.mktemp("wrong")
    lines = "".join(f"line {n * n}\n" for n in range(2000)).encode()
    files = {
        "two": b"a\nb\n",
        "empty": b"",
        "blank": b"\n \n",
        "latin": b"a\nna\xefve\n",
        "cut.gz": gzip.compress(lines)[:-500],
        "ten": b"a b c d\n" * 10,
        "table.tsv": b"en\tfr\na\tb\n",
        "table.xls": b"",
        "broken.yaml": b"data: [\n",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    return folder


@pytest.mark.parametrize(
    ("train", "parts"),
    [
        ("{src: W/nope, tgt: W/two}", ("W/nope: no such file",)),
        ("{src: W/folder, tgt: W/two}", ("W/folder: is a directory; name a file",)),
        ("{src: W/empty, tgt: W/empty}", ("W/empty", "holds no sentence pairs")),
        ("{src: W/two, tgt: W/ten}", ("W/two has 2 lines, W/ten has 10",)),
        ("{src: W/latin, tgt: W/two}", ("W/latin:2: not UTF-8 text", "convert the file to UTF-8")),
        ("{src: W/cut.gz, tgt: W/ten}", ("W/cut.gz:", "the .gz is truncated or damaged")),
        ("{src: W/two, tgt: W/blank}", ("none of 2 pairs is left: 2 have an empty side",)),
        ("{table: W/table.tsv}", ("W/table.tsv:2: no column de; it has en, fr",)),
        ("{table: W/table.xls}", ("W/table.xls: a table ends in .tsv",)),
        ("{dataset: W/folder}", ("W/folder (train): the data set cannot be loaded", "data.train='{src:")),
        ("{builtin: quickstart, split: dev}", ("no split dev; choose from: train, validation, test",)),
        ("{src: W/two}", ("command line: data.train.src: a source is exactly one of",)),
    ],
)
def test_wrong_training_data(
    train: str, parts: tuple[str, ...], wrong: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    done = tmt(*TRAIN, f"data.train={train}".replace("W", str(wrong)), f"runs_dir={tmp_path}")
    assert_user_error(done, *(part.replace("W", str(wrong)) for part in parts))
    assert not RunFolder(tmp_path / "tiny").exists()
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        (
            ("data.max_length=2",),
            "none of 50 pairs is left: 0 have an empty side, 50 are longer than",
        ),
        (("data.validation=null", "data.train={src: W/two, tgt: W/two}"), "2 training pairs are too few to cut some"),
        (("data.validation={src: W/two, tgt: W/ten}",), "W/two has 2 lines, W/ten has 10"),
        (("data.test.unseen={src: W/two, tgt: W/nope}",), "W/nope: no such file"),
        (("device=cuda:99",), "device: cuda:99 is not available"),
        (("scoring.text=moses", "data.tgt_lang=xx"), 'scoring.text: Moses has no rules for "xx"'),
    ],
)
def test_other_wrong_settings_of_the_data(
    overrides: tuple[str, ...], part: str, wrong: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    done = tmt(*TRAIN, *(override.replace("W", str(wrong)) for override in overrides), f"runs_dir={tmp_path}")
    assert_user_error(done, part.replace("W", str(wrong)))
    assert not RunFolder(tmp_path / "tiny").exists()


def test_a_hub_that_cannot_be_reached(in_tiny: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> NoReturn:
        raise ConnectionError("Couldn't reach 'bentrevett/multi30k' on the Hub")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    done = tmt(*TRAIN, "data.train={dataset: bentrevett/multi30k}", f"runs_dir={tmp_path}")
    parts = ("bentrevett/multi30k (train)", "Couldn't reach", "the network must reach the hub", "data.train='{src: ")
    assert_user_error(done, *parts)


# --- wrong words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ((), ("the following arguments are required: COMMAND",)),
        (("trian",), ("invalid choice: 'trian'", "translate")),
        (("train", "--confg", "tiny.yaml"), ("unrecognized arguments",)),
        (("train", "tiny.yaml"), ("tiny.yaml: an override is section.key=value; --config names a file",)),
        (("train", "--config", "nope.yaml"), ("nope.yaml: no such file",)),
        (("train", "--config", "W/folder"), ("W/folder: is a directory; name a YAML file",)),
        (("train", "--config", "W/empty"), ("W/empty: is empty",)),
        (("train", "--config", "W/latin"), ("W/latin: not UTF-8 text",)),
        (("train", "--config", "W/broken.yaml"), ("W/broken.yaml:2: not valid YAML",)),
        ((*TRAIN, "model.d_modle=8"), ('command line: model.d_modle: unknown key, did you mean "d_model"?',)),
        (("config", "nope.yaml"), ("nope.yaml: no such file",)),
        (("config", "tiny.yaml", "seed=x"), ("command line: seed: Input should be a valid integer",)),
        (("translate",), ("arguments are required",)),
        (("translate", "runs/nope", "one"), ("runs/nope: no such run folder; `tmt train` makes one",)),
        (("translate", "tiny.yaml", "one"), ("tiny.yaml: no such run folder",)),
        (("translate", "W/folder", "one"), ("W/folder: is not a run folder (it has no run.json)",)),
        (("translate", "RUN", "one", "--input", "F"), ("give texts or --input, not both",)),
        (("translate", "RUN", "--input", "W/nope"), ("W/nope: no such file",)),
        (("translate", "RUN", "--input", "W/folder"), ("W/folder: is a directory; name a file",)),
        (("translate", "RUN", "--input", "W/cut.gz"), ("W/cut.gz:", "the .gz is truncated or damaged")),
        (("translate", "RUN", "one", "--output", "nowhere/g"), ("nowhere/g: there is no folder ",)),
        (("translate", "RUN", "one", "--output", "W/folder"), ("W/folder: is a directory; name a file",)),
        (("translate", "RUN", "one", "--output", "/proc/g"), ("/proc/g",)),
        (("translate", "RUN", "one", "--output", "tiny.yaml/g"), ("tiny.yaml/g: there is no folder ",)),
        (("translate", "RUN", "one", "--checkpoint", "999"), ("RUN has best, last and the steps 8, 12",)),
        (("translate", "RUN", "one", "--device", "cuda:99"), ("device: cuda:99 is not available",)),
        (("translate", "RUN", os.fsdecode(b"na\xefve")), ("an argument is not UTF-8 text",)),
        (("evaluate", "W/folder"), ("W/folder: is not a run folder",)),
    ],
)
def test_wrong_words(
    command: tuple[str, ...], parts: tuple[str, ...], wrong: Path, in_tiny: Path, tiny_run: Path, tmt: Tmt
) -> None:
    names = {"W": str(wrong), "RUN": str(tiny_run)}

    def fill(text: str) -> str:
        return re.sub(r"\b(?:W|RUN)\b", lambda found: names[found[0]], text)

    before = read_folder(in_tiny)
    assert_user_error(tmt(*map(fill, command)), *map(fill, parts))
    assert read_folder(in_tiny) == before


def test_no_checkpoint_yet(run_copy: Path, tmt: Tmt) -> None:
    shutil.rmtree(run_copy / "checkpoints")
    for verb in ("translate", "evaluate"):
        assert_user_error(tmt(verb, run_copy), f"{run_copy}: has no checkpoint yet; train longer")


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", [lambda old: old[:-100], lambda old: old[:100] + bytes([old[100] ^ 4]) + old[101:]])
def test_a_damaged_checkpoint_is_never_read(
    name: str, damage: Callable[[bytes], bytes], run_copy: Path, tmt: Tmt
) -> None:
    """One bit in the middle of the weights would only make other translations."""
    path = RunFolder(run_copy).find_checkpoint("12").path / name
    path.write_bytes(damage(path.read_bytes()))
    before = read_folder(run_copy / "checkpoints")
    for command in (("translate", run_copy, "one"), ("evaluate", run_copy), TRAIN):
        done = tmt(*command, "--checkpoint", "12")
        assert_user_error(done, f"step-000012/{name}: ", "this checkpoint is damaged and was not used", "or delete ")
        assert not done.stdout
    assert read_folder(run_copy / "checkpoints") == before
    assert tmt("translate", run_copy, "one", "--checkpoint", "8").returncode == 0


def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(run_copy: Path, tmt: Tmt) -> None:
    path = RunFolder(run_copy).find_checkpoint("12").path / "training.pt"
    expected = load_file(path.with_name("model.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])
    done = tmt(*TRAIN)
    assert done.returncode == 0
    name = path.relative_to(Path.cwd())
    assert f"{name}: was truncated" in done.stderr and "it is kept as step-000012.damaged\n" in done.stderr
    assert "going on after step 8\n" in done.stderr
    assert list(figures(run_copy)["valid/loss"]) == [4, 8, 12]
    again = load_file(path.with_name("model.safetensors"))
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert tmt("translate", run_copy, "one", "--checkpoint", "last").returncode == 0


def test_no_checkpoint_is_whole(run_copy: Path, tmt: Tmt) -> None:
    """A run never begins from scratch unasked, however often the command is given."""
    for step in ("8", "12"):
        (RunFolder(run_copy).find_checkpoint(step).path / "training.pt").write_bytes(b"")
    before = read_folder(run_copy)
    for _ in range(2):
        assert_user_error(tmt(*TRAIN), "step-000008/training.pt: was truncated", "no checkpoint is intact", "--restart")
        assert {**read_folder(run_copy), "run.json": b""} == {**before, "run.json": b""}


@pytest.mark.parametrize("damage", ["", "{}", '{"format": 9}', "hello"])
def test_a_damaged_tokenizer(damage: str, run_copy: Path, tmt: Tmt) -> None:
    (run_copy / "tokenizer.json").write_text(damage)
    assert_user_error(tmt("translate", run_copy, "one"), f"{run_copy}/tokenizer.json: not a tokenizer of this program")
    (run_copy / "tokenizer.json").unlink()
    assert_user_error(tmt("translate", run_copy, "one"), "no such file; the run folder is incomplete")


@pytest.mark.slow
def test_the_real_command_exits_with_2_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess_tmt("train", "--config", tmp_path / "nope.yaml", stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == f"tmt: {tmp_path}/nope.yaml: no such file\n"


def test_a_file_for_a_text_is_pointed_out(tiny_run: Path, in_tiny: Path, tmt: Tmt) -> None:
    """Whoever left out --input would have the name of the file translated."""
    done = tmt("translate", tiny_run, "valid.en", "no file")
    assert done.stderr == (
        "tmt: warning: valid.en is a file, but was read as a text; translate --input valid.en reads its lines\n"
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 2)


def test_texts_may_stand_behind_options_and_begin_with_a_dash(tiny_run: Path, tmt: Tmt) -> None:
    texts = ("- one two", "-5")
    wanted = tmt("translate", tiny_run, stdin="\n".join([*texts, ""]).encode())
    done = tmt("translate", tiny_run, "--beam", 5, "--", *texts)
    assert (done.returncode, done.stdout) == (0, wanted.stdout), done.stderr
    before, behind = (tmt("translate", tiny_run, *options, "--", "-one") for options in ((), ("--beam", 5)))
    assert (behind.returncode, behind.stdout) == (0, before.stdout), behind.stderr
    assert tmt("translate", tiny_run, "--beem", 5, "one").returncode == 2


def test_options_of_drawing_are_refused_where_nothing_is_drawn(tiny_run: Path, tmt: Tmt) -> None:
    done = tmt("translate", tiny_run, "one", "--top-k", 3)
    assert (done.returncode, done.stdout) == (2, "") and "--top-k needs --sample" in done.stderr
    assert tmt("translate", tiny_run, "one", "--top-k", 3, "--sample").returncode == 0
    done = tmt("translate", tiny_run, "one", "--beam", 3, "--sample")
    assert (done.returncode, done.stdout) == (2, "") and "sampling has no beam" in done.stderr
