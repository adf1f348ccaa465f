"""The gate in a training, which decides which checkpoint is the best; `tmt init --from`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.data.sources import load_pairs
from transformer_mt.flows.configuration import Config, flatten, load, load_run
from transformer_mt.flows.prepare import load_split
from transformer_mt.runs.folder import RunFolder
from transformer_mt.training.metrics_logger import read_metrics

COLORS = {"en": "red blue green white", "de": "rot blau grün weiß", "no": "rød blå grønn hvit"}


def write_texts(folder: Path) -> Path:
    """Write lines of four colours in English, German, and another language as the other domain."""
    for language, names in COLORS.items():
        words = names.split()
        lines = [" ".join(words[i // 4**place % 4] for place in (0, 1, 2, 0)) for i in range(64)]
        (folder / f"t.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the texts."""
    monkeypatch.chdir(write_texts(tmp_path))
    return tmp_path


def write_config(name: str, train: Any, *, steps: int = 250, init_from: str | None = None, **validation: Any) -> str:
    values = {
        "data": {"src_lang": "en", "tgt_lang": "de", "train": train, "cache_dir": "c", **validation.pop("data", {})},
        "tokenizer": {"kind": "word", "vocab_size": 40, "min_frequency": 1},
        "batches": {"tokens": 128},
        "model": {"d_model": 32, "d_ff": 64, "n_heads": 2, "encoder": {"n_layers": 1}, "decoder": {"n_layers": 1}},
        "schedule": {"warmup_steps": 20, "peak": 0.01},
        "train": {"max_steps": steps, "init_from": init_from},
        "validation": {"every": 50, "probes": 0, **validation},
        "threads": 1,
        "precision": "fp32",
        "device": "cpu",
    }
    Path(f"{name}.yaml").write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    return f"{name}.yaml"


OLD = {"src": "t.en", "tgt": "t.de"}
NEW = {"src": "t.en", "tgt": "t.no"}
BOTH = [
    {"name": "de", "weight": 1, "tag": "2de", **OLD},
    {"name": "no", "weight": 0, "tag": "2no", "tgt_lang": "no", **NEW},
]
NAMED = [{"name": "de", "tag": "2de", **OLD}, {"name": "no", "tag": "2no", "tgt_lang": "no", **NEW}]


def train_once(folder: Path, tmt: Tmt, name: str, *config: Any, **settings: Any) -> Path:
    """Train a run in a new folder, which tests copy. Return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(write_texts(folder))
        assert_succeeded(tmt("train", write_config(name, *config, **settings)))
    return folder


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    return train_once(tmp_path_factory.mktemp("old"), tmt, "old", BOTH, data={"validation": NAMED})


@pytest.fixture(scope="module")
def german_folder(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    data = {"validation_size": 6}
    return train_once(tmp_path_factory.mktemp("german"), tmt, "german", OLD, steps=200, data=data)


@pytest.fixture(scope="module")
def brief_folder(tmp_path_factory: pytest.TempPathFactory, tmt: Tmt) -> Path:
    return train_once(tmp_path_factory.mktemp("brief"), tmt, "old", BOTH, steps=2, data={"validation": NAMED})


@pytest.fixture
def brief_run(brief_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of two steps, for tests whose result does not depend on translations."""
    monkeypatch.chdir(shutil.copytree(brief_folder, tmp_path / "copy"))
    return "runs/old"


@pytest.fixture
def old_run(old_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that knows the first domain only, but both tags."""
    monkeypatch.chdir(shutil.copytree(old_folder, tmp_path / "copy"))
    return "runs/old"


@pytest.mark.slow
def test_a_gate_keeps_a_model_that_forgets_from_being_the_best(old_run: str, tmt: Tmt) -> None:
    only_new = [{"name": "no", "tag": "2no", "tgt_lang": "no", **NEW}]
    settings: dict[str, Any] = {"data": {"validation": NAMED}, "init_from": old_run, "steps": 150, "metric": "loss"}
    done = tmt("train", write_config("free", only_new, **settings))
    assert_succeeded(done)
    assert "step 0  validation of de" in done.stderr
    assert RunFolder(Path("runs/free")).find_checkpoint("best").step > 0
    done = tmt("train", write_config("gated", only_new, gate={"de": 1.0}, **settings))
    assert_succeeded(done)
    assert "not a candidate for the best checkpoint: validation.gate: de lost" in done.stderr
    run = RunFolder(Path("runs/gated"))
    assert run.find_checkpoint("best").step == 0
    assert "--checkpoint last" in done.stderr
    replay = [
        {"name": "no", "weight": 1, "tag": "2no", "tgt_lang": "no", **NEW},
        {"name": "de", "weight": 1, "tag": "2de", **OLD},
    ]
    assert_succeeded(tmt("train", write_config("replay", replay, gate={"de": 1.0}, **settings)))
    best = RunFolder(Path("runs/replay")).find_checkpoint("best")
    assert best.step > 0 and best.scores["nll/no"] < 0.5 and best.scores["nll/de"] < 0.5


# --- tmt init --from --------------------------------------------------------------------------------------------------


@pytest.fixture
def german_run(german_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that translates 60 of the 64 lines well, with validation pairs split off the text."""
    monkeypatch.chdir(shutil.copytree(german_folder, tmp_path / "copy"))
    return "runs/german"


def write_pairs(*pairs: tuple[str, str], name: str = "new.tsv") -> str:
    Path(name).write_text("".join(f"{src}\t{tgt}\n" for src, tgt in (("en", "de"), *pairs)), encoding="utf-8")
    return name


def list_new_pairs() -> list[tuple[str, str]]:
    """Return pairs of three colours, whose translations end in one more word."""
    names = list(zip(*(COLORS[language].split() for language in ("en", "de")), strict=True))
    triples = [[names[i // 4**place % 4] for place in range(3)] for i in range(64)]
    pairs = [[" ".join(side) for side in zip(*triple, strict=True)] for triple in triples]
    return [(src, f"{tgt} rot") for src, tgt in pairs] * 3


@pytest.mark.slow
def test_new_pairs_are_learned_and_scored_beside_the_old_ones(german_run: str, tmt: Tmt) -> None:
    table = write_pairs(*list_new_pairs())
    assert_succeeded(tmt("init", table, "--from", german_run, "--out", "tuned.yaml"))
    config = load(Path("tuned.yaml"))
    assert [*yaml.safe_load(Path("tuned.yaml").read_text(encoding="utf-8"))["validation"]["gate"]] == ["old"]
    old, new = (
        load_run(RunFolder(Path(german_run))),
        {key: load_split(config, key) for key in ("train", *config.data.test)},
    )
    held_out = {*load_split(old, "validation")}
    assert not held_out & {*new["train"]} and {*new["old"]} < held_out, "the split of the run is kept"
    done = tmt("train", "--config", "tuned.yaml", "schedule.peak=0.003")
    assert_succeeded(done)
    run = RunFolder(Path("runs/tuned"))
    record = run.read_record().to_json()
    scores = record["test"]
    assert scores["new"]["bleu"]["value"] > 90 and scores["old"]["bleu"]["value"] > 60
    table = "\n".join(record["before_and_after"])
    assert table in done.stderr and table in run.readme.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in record["before_and_after"]]
    before = {row[0].strip("| "): float(row[2].split()[0]) for row in rows if "BLEU" in row}
    again = assert_succeeded(
        tmt("evaluate", german_run, "--src", "tuned-data/new-test.src", "--ref", "tuned-data/new-test.tgt", "--json")
    )
    (expected,) = json.loads(again)["test_sets"].values()
    assert before["new"] == pytest.approx(expected["metrics"]["bleu"]["value"], abs=0.01)


@pytest.mark.slow
def test_few_pairs_are_learned_and_the_rest_is_kept(german_run: str, tmt: Tmt) -> None:
    table = write_pairs(("red red red red", "rot"), ("blue blue blue blue", "blau rot"))
    assert_succeeded(tmt("init", table, "--from", german_run, "--out", "tuned.yaml"))
    assert_succeeded(tmt("train", "--config", "tuned.yaml", "schedule.peak=0.003"))
    best = RunFolder(Path("runs/tuned")).find_checkpoint("best")
    before = next(entry for entry in read_metrics(RunFolder(Path("runs/tuned")).metrics) if "valid/bleu" in entry)
    assert best.step > 0 and best.scores["chrf++/new"] == 100 and best.scores["bleu"] >= before["valid/bleu"] - 1
    assert tmt("translate", "runs/tuned", stdin=b"red red red red\n").stdout == "rot\n"


def test_configuration_sets_the_tag_of_the_new_pairs(brief_run: str, tmt: Tmt) -> None:
    table = write_pairs(*list_new_pairs())
    assert_user_error(tmt("init", table, "--from", brief_run, "--out", "tuned.yaml"), "--from: runs/old: ", "2de, 2no")
    command = ("init", table, "--from", brief_run, "--out", "tuned.yaml", "--tag")
    assert_user_error(tmt(*command, "2xx"), "--from: runs/old: ", "2xx")
    assert not [*Path().glob("tuned*")]
    assert_succeeded(tmt(*command, "2de"))
    assert [source.tag for source in load(Path("tuned.yaml")).data.train_sources] == ["2de", "2de"]
    assert_user_error(tmt(*command, "2de"), "tuned.yaml: exists already")
    assert_succeeded(tmt(*command, "2de", "--force"))


def test_a_run_without_a_checkpoint_is_refused(brief_run: str, tmt: Tmt) -> None:
    shutil.rmtree(Path(brief_run, "checkpoints"))
    done = tmt("init", write_pairs(*list_new_pairs()), "--from", brief_run, "--tag", "2de", "--out", "tuned.yaml")
    assert_user_error(done, "runs/old: ", "no checkpoint", "tmt train")
    assert not [*Path().glob("tuned*")]


def test_replay_files_take_the_place_of_data_that_are_gone(german_run: str, tmt: Tmt) -> None:
    table = write_pairs(*list_new_pairs())
    shutil.rmtree("c")
    Path("t.en").rename("old.en")
    done = tmt("init", table, "--from", german_run, "--out", "alone.yaml")
    assert_succeeded(done)
    assert "t.en" in done.stderr and "--replay" in done.stderr
    assert len(load(Path("alone.yaml")).data.train_sources) == 1
    command = ("init", table, "--from", german_run, "--out", "tuned.yaml", "--replay")
    assert_user_error(tmt(*command, "t.en", "t.de"), "t.en")
    for name in ("few.en", "few.de"):
        Path(name).write_text("red blue\n", encoding="utf-8")
    few = ("init", "few.en", "few.de", "--from", german_run, "--out", "tuned.yaml", "--replay", "few.en", "few.de")
    assert_user_error(tmt(*few), "few.en", "100 or more old pairs")
    assert_succeeded(tmt(*command, "old.en", "t.de"))
    sources = load(Path("tuned.yaml")).data.train_sources
    assert Path(sources[1].src[0]).read_text(encoding="utf-8") == Path("old.en").read_text(encoding="utf-8")


def write_quickstart_pairs(n: int) -> None:
    """Write pairs whose languages can be detected; the last ones repeat the first, with another translation."""
    pairs = [*load_pairs("train")[:n], *((src, "Etwas anderes.") for src, _ in load_pairs("train")[:20])]
    for side, name in enumerate(("q.en", "q.de")):
        Path(name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")


@pytest.mark.parametrize("n_pairs", [10, 200])
def test_swapped_files_are_refused(n_pairs: int, brief_run: str, tmt: Tmt) -> None:
    write_quickstart_pairs(n_pairs)
    command = ("init", "q.de", "q.en", "--from", brief_run, "--tag", "2de", "--out", "tuned.yaml")
    assert_user_error(tmt(*command), "q.de: ", "swap")
    assert not Path("tuned.yaml").exists()


def test_no_held_out_sentence_is_trained_on(brief_run: str, tmt: Tmt) -> None:
    write_quickstart_pairs(300)
    command = ("init", "q.en", "q.de", "--from", brief_run, "--tag", "2de", "--out", "tuned.yaml")
    assert "translate with --tag 2de" in assert_succeeded(tmt(*command))
    for side in ("src", "tgt"):
        train, *held_out = (
            {*Path(f"tuned-data/new-{part}.{side}").read_text(encoding="utf-8").splitlines()}
            for part in ("train", "valid", "test")
        )
        assert all(held_out) and not any(train & each for each in held_out)


def test_options_of_a_fine_tuning_need_a_run(folder: Path, tmt: Tmt) -> None:
    for option in (("--replay", "t.en", "t.de"), ("--tag", "2de")):
        assert_user_error(tmt("init", "t.en", "t.de", *option), f"{option[0]}: belongs to --from")
    assert_user_error(tmt("init", "t.en", "t.de", "--from", "runs/none"), "runs/none")
    assert not Path("mine.yaml").exists()


@pytest.mark.slow
def test_a_language_is_added_and_the_old_one_translates_as_before(
    german_folder: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(german_folder, tmp_path / "copy"))
    config = yaml.safe_load(Path("german.yaml").read_text(encoding="utf-8"))
    config["tokenizer"] = {"kind": "bpe", "vocab_size": 300, "min_frequency": 1}
    Path("pieces.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    assert_succeeded(tmt("train", "--config", "pieces.yaml"))
    Path("more.en").write_text(3 * Path("t.en").read_text(encoding="utf-8"), encoding="utf-8")
    Path("more.no").write_text(3 * Path("t.no").read_text(encoding="utf-8"), encoding="utf-8")
    command = ("init", "more.en", "more.no", "--from", "runs/pieces", "--out", "both.yaml", "--tgt-lang", "no")
    assert_user_error(tmt(*command), "--from: runs/pieces", "--extend-vocabulary")
    assert_succeeded(tmt(*command, "--extend-vocabulary", "40"))
    assert "en into de, en into no (tag no)" in Path("both-data/start/README.md").read_text(encoding="utf-8")
    text = ("--input", "t.en", "--beam", "5")
    before = assert_succeeded(tmt("translate", "runs/pieces", *text))
    assert assert_succeeded(tmt("translate", "both-data/start", *text)) == before
    assert_succeeded(tmt("train", "--config", "both.yaml"))
    scores = RunFolder(Path("runs/both")).read_record().to_json()["test"]
    assert scores["new"]["bleu"]["value"] > 40 and scores["old"]["bleu"]["value"] > 40  # of unseen sentences


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_a_run_of_muon_is_tuned_with_muon_at_a_lower_rate(kind: str, brief_run: str, tmt: Tmt) -> None:
    path = RunFolder(Path(brief_run)).config
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["optimizer"]["kind"] = kind
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    table = write_pairs(*list_new_pairs()[:120])
    assert_succeeded(tmt("init", table, "--from", brief_run, "--tag", "2no", "--out", "tuned.yaml"))
    tuned = yaml.safe_load(assert_succeeded(tmt("config", "tuned.yaml")))
    assert tuned["optimizer"]["kind"] == ("muon" if kind == "muon" else "adamw")
    assert tuned["schedule"]["peak"] < values["schedule"]["peak"]


@pytest.mark.parametrize("n_pairs", [100, 105, 99])
def test_a_hundred_pairs_are_divided_and_fewer_are_validated_on(n_pairs: int, brief_run: str, tmt: Tmt) -> None:
    table = write_pairs(*list_new_pairs()[:n_pairs])
    assert_succeeded(tmt("init", table, "--from", brief_run, "--tag", "2no", "--out", "tuned.yaml"))
    config = yaml.safe_load(Path("tuned.yaml").read_text(encoding="utf-8"))
    assert [source["name"] for source in config["data"]["validation"]] == ["new", "old-de", "old-no"]
    assert ("new" in config["data"]["test"]) == (n_pairs >= 100)
    train, validation = ({*load_split(load(Path("tuned.yaml")), part)} for part in ("train", "validation"))
    assert bool({*list_new_pairs()[:n_pairs]} & train & validation) == (n_pairs < 100)
    assert {source["tag"]: source.get("tgt_lang", "de") for source in config["data"]["train"]} == {
        "2no": "no",
        "2de": "de",
    }


def test_a_run_in_a_folder_with_any_name_is_tuned(brief_run: str, tmt: Tmt) -> None:
    run = Path("My Runs #1", "old")
    Path(brief_run).parent.rename(run.parent)
    table = write_pairs(*list_new_pairs())
    assert_succeeded(tmt("init", table, "--from", run, "--tag", "2no", "--out", "tuned.yaml"))
    assert load(Path("tuned.yaml")).model == load_run(RunFolder(run)).model


def test_nothing_is_written_if_the_vocabulary_cannot_be_extended(brief_run: str, tmt: Tmt) -> None:
    table = write_pairs(*list_new_pairs())
    command = ("init", table, "--from", brief_run, "--tag", "2de", "--extend-vocabulary", "50", "--out", "tuned.yaml")
    assert_user_error(tmt(*command), "kind word")
    assert not [*Path().glob("tuned*")]


def test_a_tag_before_the_target_needs_such_tags_in_the_run(brief_run: str, tmt: Tmt) -> None:
    table = write_pairs(*list_new_pairs())
    command = ("init", table, "--from", brief_run, "--tag", "en:fr", "--extend-vocabulary", "50", "--out", "tuned.yaml")
    assert_user_error(tmt(*command), "--tag en:fr")
    assert not [*Path().glob("tuned*")]


def edit_run(path: str, **sections: Any) -> None:
    """Change settings in the configuration of a run. A section is merged."""
    config = RunFolder(Path(path)).config
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    for name, value in sections.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    config.write_text(yaml.safe_dump(values), encoding="utf-8")


TUNE = ("--tag", "2de", "--out", "tuned.yaml")
BROKEN = [("red\nblue", "rot blau"), ("green", "grün\r\nweiß"), ("white", "weiß")]
JOINED = [("red blue", "rot blau"), ("green", "grün weiß"), ("white", "weiß")]


def write_broken_table(kind: str) -> str:
    """Write a table with line breaks inside cells."""
    lines = [json.dumps({"en": src, "de": tgt}) for src, tgt in BROKEN]
    if kind == "csv":
        lines = ["en,de", *(f'"{src}","{tgt}"' for src, tgt in BROKEN)]
    Path(f"broken.{kind}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return f"broken.{kind}"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_line_breaks_in_new_and_replayed_cells_become_spaces(kind: str, brief_run: str, tmt: Tmt) -> None:
    table = write_broken_table(kind)
    edit_run(brief_run, data={"train": {"table": table, "tag": "2de"}, "validation": NAMED[:1]})
    assert_succeeded(tmt("init", table, "--from", brief_run, *TUNE))
    new, old = load_split(load(Path("tuned.yaml")), "train").split_sources()
    assert {*new} == {*JOINED} and [*old] == JOINED


def test_old_test_sets_keep_their_languages(brief_run: str, tmt: Tmt) -> None:
    edit_run(brief_run, data={"test": {"norwegian": {"tag": "2no", "tgt_lang": "no", **NEW}}})
    assert_succeeded(tmt("init", write_pairs(("red", "rot")), "--from", brief_run, *TUNE))
    source = load(Path("tuned.yaml")).data.test["old-norwegian"]
    assert (source.tag, source.tgt_lang) == ("2no", "no")


MACHINE = {
    "runs_dir": "/elsewhere",
    "device": "cuda",
    "precision": "bf16",
    "compile": "layers",
    "threads": 64,
    "data": {"cache_dir": "/elsewhere"},
    "batches": {"packed_positions": 9999},
    "train": {"cuda_graphs": True, "waiting": "active"},
}


def test_settings_of_the_old_machine_are_reset(brief_run: str, tmt: Tmt) -> None:
    edit_run(brief_run, **MACHINE)
    assert_succeeded(tmt("init", write_pairs(("red", "rot")), "--from", brief_run, *TUNE))
    tuned = flatten(load(Path("tuned.yaml")))
    default = flatten(Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de", "train": OLD}}))
    keys = [f"{key}.{inner}" for key, value in MACHINE.items() if isinstance(value, dict) for inner in value]
    for key in (*keys, *(key for key, value in MACHINE.items() if not isinstance(value, dict))):
        assert tuned[key] == default[key], key


def test_few_pairs_without_old_ones_have_no_test_set(brief_run: str, tmt: Tmt) -> None:
    table = write_pairs(("red", "rot"))
    validation = write_pairs(("blue", "blau"), name="valid.tsv")
    gone = {"src": "gone.en", "tgt": "gone.de", "tag": "2de"}
    edit_run(brief_run, data={"train": gone, "validation": NAMED[:1], "test": {"x": gone}})
    done = tmt("init", table, "--from", brief_run, "--validation", validation, *TUNE)
    assert "gone.en" in done.stderr
    assert_succeeded(done)
    assert load(Path("tuned.yaml")).data.test == {}


def test_a_single_old_validation_pair_is_no_test_set(brief_run: str, tmt: Tmt) -> None:
    one = {"name": "one", "tag": "2de", "table": write_pairs(("red", "rot"), name="one.tsv")}
    edit_run(brief_run, data={"validation": [one, NAMED[1]]})
    assert_succeeded(tmt("init", write_pairs(("red", "rot")), "--from", brief_run, *TUNE))
    config = load(Path("tuned.yaml"))
    assert [*config.data.test] == ["old-no"] and {"old-one", "old-no"} == config.validation.gate.keys()


def test_names_of_any_form_are_quoted(brief_run: str, tmt: Tmt) -> None:
    names = ["news, 2020", "wmt #14: x"]
    validation = [{**source, "name": name} for source, name in zip(NAMED, names, strict=True)]
    edit_run(brief_run, data={"validation": validation, "test": {name: {"tag": "2de", **OLD} for name in names}})
    assert_succeeded(tmt("init", write_pairs(("red", "rot")), "--from", brief_run, *TUNE))
    config = load(Path("tuned.yaml"))
    assert [*config.data.test] == [*config.validation.gate] == [f"old-{name}" for name in names]


@pytest.mark.parametrize("replay", [("--replay", "t.en", "t.de"), ()])
def test_tags_that_no_pairs_have_are_named(replay: tuple[str, ...], brief_run: str, tmt: Tmt) -> None:
    edit_run(brief_run, data={"train": NAMED})
    done = tmt("init", write_pairs(*list_new_pairs()), "--from", brief_run, *replay, *TUNE)
    assert_succeeded(done)
    assert ("2no" in done.stderr) == bool(replay)


def test_pairs_without_a_translation_are_refused(brief_run: str, tmt: Tmt) -> None:
    done = tmt("init", write_pairs(("red", ""), ("blue", " ")), "--from", brief_run, *TUNE)
    assert_user_error(done, "new.tsv", "empty side")
    assert not [*Path().glob("tuned*")]


@pytest.mark.parametrize("option", ["--validation", "--test", "--replay"])
def test_swapped_files_of_an_option_are_refused(option: str, brief_run: str, tmt: Tmt) -> None:
    write_quickstart_pairs(200)
    done = tmt("init", write_pairs(("red", "rot")), "--from", brief_run, option, "q.de", "q.en", *TUNE)
    assert_user_error(done, "q.de: ", "swap")


@pytest.mark.parametrize(("tag", "decoding_tag"), [("2no", None), ("2xx", "2de"), ("2xx", None)])
def test_replay_has_a_tag_that_the_run_knows(tag: str, decoding_tag: str | None, brief_run: str, tmt: Tmt) -> None:
    edit_run(brief_run, decoding={"tag": decoding_tag})
    command = ("init", write_pairs(*list_new_pairs()), "--from", brief_run, "--replay", "t.en", "t.no")
    done = tmt(*command, "--extend-vocabulary", "9", "--tag", tag, "--out", "tuned.yaml")
    is_refused = tag == "2xx" and decoding_tag is None
    assert_user_error(done, "decoding.tag" if is_refused else "kind word")  # whose vocabulary cannot be extended
