"""scripts/reproduce.py makes a table from raw text and skips finished tasks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import reproduce
import reproduce_tasks
import reproduce_work
from helpers import LONG_TEST, RUN_RECORD

from transformer_mt.data.data_config import Source
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.synthesize import TRANSLATED
from transformer_mt.runs.folder import FORMAT, RunFolder

WORDS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}
SMALL = (
    *("tokenizer={vocab_size: 300}", "batches.tokens=64", "batches.accumulate=1", "threads=1", "device=cpu"),
    *("model={d_model: 8, d_ff: 8, n_heads: 2, encoder: {n_layers: 1}, decoder: {n_layers: 1}}", "train.max_steps=3"),
    *("validation.every=1", "decoding={max_length_factor: 0, max_length_offset: 4}"),
)

WRONG = [["--pair", "ende"], ["--jobs", "00"], ["data={}"], ["--screen", "adam", "--system", "tiny"]]
TAUGHT, DRAWN_TAUGHT = (f"screened-en-de-ensemble-of-2-{name}" for name in ("taught", "drawn-taught"))
BACK, DRAWN = (f"screened-de-en-1-{name}" for name in ("back", "drawn"))
PAIR = "text/train.en", "text/train.de"
TRAINED_ON = [PAIR, *((f"{name}/train.en", f"{name}/train.de") for name in (TAUGHT, BACK, DRAWN, DRAWN_TAUGHT))]


def named_pairs(source: Source) -> list[tuple[str, str]]:
    """Return both files of each pair, each with the name of its folder."""
    pairs = ((Path(src), Path(tgt)) for src, tgt in zip(source.src, source.tgt, strict=True))
    return [(f"{src.parent.name}/{src.name}", f"{tgt.parent.name}/{tgt.name}") for src, tgt in pairs]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small corpus with the file names of Multi30k, in the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    for part, count in {"train": 25, "val": 6, "test_2016_flickr": 4}.items():
        pairs = [(src, tgt) for src in WORDS.items() for tgt in WORDS.items()][:count]
        for side, lang in enumerate(("en", "de")):
            lines = [f"{one[side].title()}, {other[side]}.\n" for one, other in pairs]
            (folder / f"{part}.{lang}").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.slow
@LONG_TEST
def test_reproduce_trains_averages_and_scores(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "SYSTEMS", {"tiny": reproduce.TINY._replace(averaged=2)})
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "multi30k", "--data", str(data), "--seeds", "2", *SMALL])
    reproduce.main()
    *_, seeds, ensemble_row = rows = capsys.readouterr().out.splitlines()
    assert seeds.startswith("| `tiny` | ") and seeds.endswith(" | 2 |") and seeds.count(" to ") == 6
    assert ensemble_row.startswith("| `tiny`, ensemble | ") and ensemble_row.endswith(" | 2 together |")
    assert " to " not in ensemble_row and ensemble_row.count("|") == seeds.count("|")
    assert Path("runs/multi30k/text/val.de").read_text(encoding="utf-8").splitlines()[1] == "eins , zwei ."
    made = {path: path.stat().st_mtime_ns for path in Path("runs/multi30k").glob("*average*/**/*")}
    assert len([path for path in made if path.match("scores-*.json")]) == 4
    ensemble = Path("runs/multi30k/tiny-en-de-ensemble-of-2-test_2016_flickr.json")
    made[ensemble] = ensemble.stat().st_mtime_ns
    about = json.loads(ensemble.read_text(encoding="utf-8"))
    first, second = (f"runs/multi30k/tiny-en-de-{seed}-average-last-2" for seed in (1, 2))
    assert (about["run"], about["ensemble"]) == (first, [{"run": second, "step": 3}])

    reproduce.main()
    assert capsys.readouterr().out.splitlines()[-2:] == rows[-2:]  # nothing was written again
    assert {path: path.stat().st_mtime_ns for path in made} == made


@LONG_TEST
def test_reproduce_trains_teachers_and_students(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "SYSTEMS", {"distilled": reproduce.DISTILLED})
    arguments = ["multi30k", "--data", str(data), "--seeds", "1", "--jobs", "2", *SMALL]
    arguments += ["model.d_model=32", "model.d_ff=64", "batches.tokens=512", "train.max_steps=60"]  # learns EOS
    arguments += ["schedule.warmup_steps=5", "schedule.decay_steps=20", "validation.every=60"]
    arguments += ["decoding.max_length_offset=16"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    reproduce.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("| `distilled` | ")
    trained_on = configuration.load(Path("runs/multi30k/distilled-en-de-1/config.yaml")).data.train_sources[0]
    assert named_pairs(trained_on) == TRAINED_ON
    made = {path: path.stat().st_mtime_ns for path in Path("runs/multi30k").glob("*-last/**/*")}
    assert len(made) > 12  # of four models

    sys.argv += ["validation.probes=0"]
    reproduce.main()  # nothing to do, because this key may change between runs
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_screening_scores_one_change_at_a_time_on_validation_only(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"screen-nothing": 40.0, "screen-post-norm": 40.25}
    done: dict[str, tuple[str, ...]] = {}

    def execute(work: reproduce_work.SystemRun) -> None:
        assert (work.scored, work.threads) == (("val",), 1)
        done[work.system.name] = work.system.overrides
        scores = {"test_sets": {"val": {"metrics": {"p": {"value": found[work.system.name]}}}}}
        work.scored_run.path.mkdir(parents=True)
        work.scores_file("val").write_text(json.dumps(scores), encoding="utf-8")
        work.run.path.mkdir()
        record = {**RUN_RECORD, "format": FORMAT, "parameters": 2_500_000, "hours": 0.5}
        (work.run.path / "run.json").write_text(json.dumps(record), encoding="utf-8")

    monkeypatch.setattr(reproduce_work.SystemRun, "execute", execute)
    arguments = ["multi30k", "--data", str(data), "--screen", "post-norm", "--jobs", "2", "train.max_steps=3"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    reproduce.main()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "| nothing | 40.00 | +0.00 | 2.50 M | 0.50 |",
        "| post-norm | 40.25 | +0.25 | 2.50 M | 0.50 |",
    ]
    assert done["screen-post-norm"] == ("model.norm_position=post", "train.max_steps=3")
    assert done["screen-nothing"] == ("train.max_steps=3",)


def test_students_start_after_their_teachers_and_restart_with_new_texts(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[object] = []
    trained_on: dict[str, object] = {}
    scores = {"test_sets": {"val": {"metrics": {name: {"value": 40.0} for name in ("p", "bleu", "chrf++", "ter")}}}}

    def execute(work: reproduce_work.SystemRun) -> None:
        events.append((work.run.path.name, work.scored, work.is_outdated()))
        assert work.system.overrides == ("train.max_steps=3",)
        for folder in (work.run, work.scored_run):
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.config.write_text("", encoding="utf-8")
            record = {**RUN_RECORD, "format": FORMAT, "parameters": 2_500_000, "hours": 0.5}
            (folder.path / "run.json").write_text(json.dumps(record), encoding="utf-8")
        work.run.tokenizer.write_text("", encoding="utf-8")
        for part in work.scored:
            work.scores_file(part).write_text(json.dumps(scores), encoding="utf-8")
        config = configuration.load(reproduce_work.CONFIGS / work.system.config, [*work.data_settings()])
        trained_on[work.name] = named_pairs(config.data.train_sources[0])

    def tmt(*words: object, threads: int | None = None) -> str:
        if words[0] == "synthesize":
            teachers = [Path(str(word)).name for word in words if str(word).endswith("-last")]
            mono, folder = Path(str(words[-3])), Path(str(words[-1]))
            events.append(
                (words[words.index("--direction") + 1], *teachers, f"{mono.parent.name}/{mono.name}", folder.name)
            )
            folder.mkdir()
            for name in ("train.en", "train.de"):
                (folder / name).write_text("", encoding="utf-8")
        if words[0] == "evaluate":
            ref, output = (Path(str(words[words.index(option) + 1])) for option in ("--ref", "--output"))
            output.write_bytes(ref.read_bytes())
        return json.dumps(scores)

    monkeypatch.setattr(reproduce_work.SystemRun, "execute", execute)
    monkeypatch.setattr(reproduce_work, "tmt", tmt)
    arguments = ["multi30k", "--data", str(data), "--seeds", "2", "--system", "distilled", "train.max_steps=3"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    parts = "val", "test_2016_flickr"
    backward, *forward = "screened-de-en-1", "screened-en-de-1", "screened-en-de-2"
    ensemble = [f"{teacher}-last" for teacher in forward]
    for is_outdated in (False, True):
        reproduce.main()
        assert events == [
            *[(teacher, parts, False) for teacher in forward],
            (backward, parts[:1], False),
            ("forward", *ensemble, "text/train.en", TAUGHT),
            ("back", f"{backward}-last", "text/train.de", BACK),
            ("back", f"{backward}-last", "text/train.de", DRAWN),
            ("forward", *ensemble, f"{DRAWN}/train.en", DRAWN_TAUGHT),
            *[(f"distilled-en-de-{seed}", parts, is_outdated) for seed in (1, 2)],
        ]
        events.clear()
    assert trained_on == {"screened-en-de": [PAIR], "screened-de-en": [PAIR[::-1]], "distilled-en-de": TRAINED_ON}
    assert [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        *("| `distilled`", "| `distilled`, ensemble")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_outdated", [False, True])
def test_an_interrupted_translation_is_resumed_unless_its_source_changed(
    is_outdated: bool, data: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce_work.SystemRun, "scored_run", RunFolder(tiny_run))
    reproduce_work.TEXT.mkdir(parents=True)
    text = reproduce_work.TEXT / "train.en"
    made = reproduce_work.SyntheticText(
        "taught", (reproduce_work.SystemRun(reproduce.FAST, 1, "en", "de", ("val",), 1),)
    )
    part = made.folder / f"{TRANSLATED}.part"
    text.write_bytes(b"one two\n" * 1100 + b"\xff\n")
    with pytest.raises(UserError, match="ended with status 2"):
        made.execute()
    settings, first, rest = part.read_bytes().split(b"\n", 2)
    kept = json.dumps(["", "One two", ""]).encode().ljust(len(first))
    part.write_bytes(b"\n".join([settings, kept, rest]))
    text.write_bytes(b"one two\n" * 1101)
    if is_outdated:  # each pair of the untrained model is dropped
        with pytest.raises(UserError, match="ended with status 2"):
            made.execute()
        assert not made.src_file.exists()
    else:
        os.utime(part)
        made.execute()
        assert made.src_file.read_bytes() == b"One two\n"


def test_screened_changes_are_valid_overrides() -> None:
    path = reproduce_work.CONFIGS / reproduce.FAST.config
    before = configuration.load(path)
    for name, changes in reproduce.CHANGES.items():
        assert (configuration.load(path, changes) == before) is (name == "nothing")


def test_scores_are_deleted_when_their_text_changes(data: Path) -> None:
    parts = reproduce.VALIDATION, reproduce.TEST
    scores = [Path(f"runs/multi30k/tiny-en-de-1-average-last-10/scores-{part}.json") for part in parts]
    reproduce_work.write_preprocessed_texts(data, "de")
    scores[0].parent.mkdir()
    for file in scores:
        file.write_text("{}", encoding="utf-8")
    reproduce_work.write_preprocessed_texts(data, "de")
    assert [file.exists() for file in scores] == [True, True]
    (data / "val.de").write_text("Eins.\n", encoding="utf-8")
    reproduce_work.write_preprocessed_texts(data, "de")
    assert [file.exists() for file in scores] == [False, True]


def test_a_failing_command_is_named_and_its_log_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["multi30k", "--data", str(data), "--seeds", "1", "model.d_modle=3"]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    with pytest.raises(UserError, match="ended with status 2"):
        reproduce.main()
    assert "d_modle" in Path("runs/multi30k/tiny-en-de-1.log").read_text(encoding="utf-8")


class Note(NamedTuple):
    """A task that writes its name."""

    name: str
    write: Callable[[str], None]
    dependencies: tuple[Note, ...] = ()

    def execute(self) -> None:
        self.write(self.name)


def test_tasks_run_in_order() -> None:
    """Also if several finish before the scheduler looks."""
    written: list[str] = []
    first = [Note(f"{n}", written.append) for n in range(200)]
    then = [Note(f"{note.name}, then", written.append, (note,)) for note in first]
    reproduce_tasks.run_tasks([*first, *then], 1)
    assert written == [note.name for note in (*first, *then)]


def test_no_task_starts_after_a_failure() -> None:
    written: list[str] = []

    def fail(_: str) -> None:
        raise UserError("tmt train\nended with status 2")

    with pytest.raises(UserError, match="ended with status 2"):
        reproduce_tasks.run_tasks([Note("one", written.append), Note("two", fail), Note("three", written.append)], 1)
    assert written == ["one"]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused(wrong: list[str], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "multi30k", "--data", str(data), *wrong])
    with pytest.raises(SystemExit) as end:
        reproduce.main()
    assert end.value.code == 2
