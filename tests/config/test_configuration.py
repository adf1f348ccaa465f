"""Root configuration: errors, inheritance, overrides, rendering, reference and schema."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_mt.config.section import REMOVED, Section
from transformer_mt.config.yaml_files import Tree, read_yaml, render_yaml
from transformer_mt.data.data_config import DataConfig, Source
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.flows.configuration import Config, flatten, list_changed_keys, load, may_change_on_resume

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))

MINIMAL = "data: {src_lang: en, tgt_lang: de, train: {builtin: quickstart}}\n"

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a YAML file into the folder of this test."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def make(**sections: Any) -> Config:
    data = {"src_lang": "en", "tgt_lang": "de", "train": {"builtin": "quickstart"}, **sections.pop("data", {})}
    return Config.model_validate({"data": data, **sections})


def error_lines(path: Path, *overrides: str) -> list[str]:
    """Return the lines of the error message, without the folder."""
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    return str(caught.value).replace(f"{path.parent}/", "").split("\n")


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model:\n  d_modle: 8\n", 'x.yaml:3: model.d_modle: unknown key, did you mean "d_model"?'),
        ("max_steps: 8\n", 'x.yaml:2: max_steps: unknown key, did you mean "train.max_steps"?'),
        ("train: {max_steps:8}\n", "x.yaml:2: train.max_steps:8: unknown key; write a space after the colon"),
        ("train: {ledger: yes}\n", "x.yaml:2: train.ledger: was removed"),
        ("precision: fp23\n", 'x.yaml:2: precision: "fp23" is not allowed, did you mean "fp32"?'),
        ("optimizer: {kind: AdamW}\n", 'x.yaml:2: optimizer.kind: "AdamW" is not allowed, did you mean "adamw"?'),
        ("model:\n", "x.yaml:2: model: must be a section of keys and values, not nothing; delete this key"),
        ("decoding: {glossary: $HOME/t.tsv}\n", "x.yaml:2: decoding.glossary: $HOME: "),
        (
            "device: {threads: 1}\n",
            'x.yaml:2: device: must be a single value, so there is no key device.threads; did you mean "threads"?',
        ),
        (
            "train: {max_steps: {foo: 1}}\n",
            "x.yaml:2: train.max_steps: must be a single value, so there is no key train.max_steps.foo",
        ),
        ("schedule:\n  peak: 0,008\n", "x.yaml:3: schedule.peak: must be a number with a decimal point"),
        ("schedule: {peak: 1:30}\n", "x.yaml:2: schedule.peak: "),
        ("model:\n  d_model: 10\n  n_heads: 3\n", "x.yaml:4: model.n_heads: 3 does not divide d_model 10"),
        ("runs_dir: $HOME/runs\n", "x.yaml:2: runs_dir: $HOME: "),
        ("runs_dir: /data/${USER}\n", "x.yaml:2: runs_dir: ${USER}: "),
        ("runs_dir: runs/exp_$SLURM_JOB_ID\n", "x.yaml:2: runs_dir: $SLURM_JOB_ID: "),
        ("runs_dir: $A$B\n", "x.yaml:2: runs_dir: $A: "),
        ("runs_dir: runs-${X:-y}\n", "x.yaml:2: runs_dir: ${X:-y}: "),
        ("runs_dir: runs/exp$SLURM_JOB_ID\n", "x.yaml:2: runs_dir: $SLURM_JOB_ID: "),
        ("runs_dir: run+$X\n", "x.yaml:2: runs_dir: $X: "),
        ("tokenizer: {file: $DATA/t.json}\n", "x.yaml:2: tokenizer.file: $DATA: "),
        ("train: {init_from: a/$RUN}\n", "x.yaml:2: train.init_from: $RUN: "),
        ("schedule: {warmup_steps: -1}\n", "x.yaml:2: schedule.warmup_steps: must be greater"),
        ("decoding:\n  engine: ctranslate2\n  sample: yes\n", "x.yaml:4: decoding.sample: "),
        ("model:\n  norm_position: sublayer\n", "x.yaml:3: model.norm_position: was removed"),
        ("model: {encoder: {layer_drop: 0.1}}\n", "x.yaml:2: model.encoder.layer_drop: was removed"),
    ],
)
def test_error_names_file_line_key_and_remedy(write: Write, text: str, message: str) -> None:
    (line,) = error_lines(write("x.yaml", MINIMAL + text))
    assert line.startswith(message)


DATA = "data:\n  src_lang: en\n  tgt_lang: de\n"


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("  train: {}\n", "x.yaml:4: data.train: a source is exactly one of .*; found none"),
        (
            "  train: {src: [a, b], tgt: c}\n",
            "x.yaml:4: data.train.tgt: src and tgt must name equally many files, and name 2 and 1",
        ),
        ("  train: {spilt: x, dataset: y}\n", 'x.yaml:4: data.train.spilt: unknown key, did you mean "split"'),
        (
            "  train: {dataset: x}\n  validation: {dataset: x}\n",
            "x.yaml:5: data.validation.split: the def",
        ),
    ],
)
def test_source_must_be_of_exactly_one_kind(write: Write, train: str, message: str) -> None:
    assert re.match(message, error_lines(write("x.yaml", DATA + train))[0])


def test_all_mistakes_are_listed_in_the_order_of_the_file(write: Write) -> None:
    path = write("x.yaml", "model:\n  d_modle: 1\n  d_ff: x\ntrain:\n  max_steps: 0\n" + DATA + "speed: 11\n")
    lines = [line.split(": ")[:2] for line in error_lines(path, "loss.label_smoothing=2")]
    assert lines == [
        ["x.yaml:2", "model.d_modle"],
        ["x.yaml:3", "model.d_ff"],
        ["x.yaml:5", "train.max_steps"],
        ["x.yaml:6", "data.train"],
        ["x.yaml:9", "speed"],
        ["command line", "loss.label_smoothing"],
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tokenizer: {joint: no}\nmodel:\n  tie_embeddings: all\n", "x.yaml:4: model.tie_embeddings"),
        ("train: {max_steps: null}\nvalidation: {patience: null}\n", "x.yaml:2: train.max_steps"),
        ("schedule: {kind: wsd, warmup_steps: 9, total_steps: 9}\n", "x.yaml:2: schedule.warmup_steps"),
        ("model: {positions: learned, max_positions: 255}\n", "x.yaml:2: model.max_positions"),
        ("validation: {gate: {all: 1}}\n", "x.yaml:2: validation.gate: "),
        ("train: {init_from: old}\nvalidation:\n  gate: {news: 1}\n", "x.yaml:4: validation.gate.news: "),
        ("train: {init_from: old}\nvalidation:\n  gate: {all: -0.5}\n", "x.yaml:4: validation.gate.all: "),
    ],
)
def test_contradicting_sections_are_refused(write: Write, text: str, place: str) -> None:
    (line,) = error_lines(write("x.yaml", MINIMAL + text))
    assert line.startswith(place)


def test_a_gate_of_a_warm_start_may_allow_no_loss(write: Write) -> None:
    text = "train: {init_from: old}\nvalidation: {gate: {all: 0}}\n"
    assert load(write("x.yaml", MINIMAL + text)).validation.gate == {"all": 0}


def test_missing_scoring_tokenizer_is_refused_before_training(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    (line,) = error_lines(write("x.yaml", MINIMAL + "scoring: {tokenize: ja-mecab}\n"))
    assert line == "x.yaml:2: scoring.tokenize: ja-mecab needs one more package: pip install 'sacrebleu[ja]'"


@pytest.mark.parametrize(
    "sections",
    [
        {"tokenizer": {"joint": False}, "model": {"tie_embeddings": "decoder"}},
        {"train": {"max_steps": None, "max_epochs": 1}, "validation": {"patience": None}},
    ],
)
def test_compatible_sections_are_accepted(sections: dict[str, Any]) -> None:
    assert list(make(**sections).find_conflicts()) == []


@pytest.mark.parametrize("name", ["train", "validation"])
def test_test_set_cannot_take_a_reserved_name(name: str, write: Write) -> None:
    text = MINIMAL.replace("}}", f"}}, test: {{{name}: {{builtin: quickstart, split: test}}}}}}")
    (said,) = error_lines(write("x.yaml", text))
    assert said == f"x.yaml:1: data.test: {name} is a reserved name: rename this test set"


# --- inheritance ------------------------------------------------------------------------------------------------------


def test_file_inherits_the_keys_that_it_does_not_set(write: Write) -> None:
    write("base.yaml", MINIMAL + "name: base\nseed: 5\nmodel: {d_model: 64, encoder: {n_layers: 7}}\n")
    write("sub/middle.yaml", "base: ../base.yaml\nseed: 6\n")
    config = load(write("heir.yaml", "base: sub/middle.yaml\nmodel: {d_ff: 99}\n"))
    assert config.name == "heir"
    assert (config.seed, config.model.d_model, config.model.d_ff, config.model.encoder.n_layers) == (6, 64, 99, 7)


def test_base_path_expands_the_home_folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write("home/base.yaml", MINIMAL + "seed: 5\n")
    assert load(write("heir.yaml", "base: ~/base.yaml\n")).seed == 5
    with pytest.raises(UserError, match=r"~nobody.here/base.yaml: no such file"):
        load(write("heir.yaml", "base: ~nobody.here/base.yaml\n"))


def test_sources_and_test_sets_replace_inherited_ones_as_a_whole(write: Write) -> None:
    hub = "{dataset: hub/name, split: train}"
    sources = f"train: {hub}, validation: {hub}, test: {{news: {hub}}}"
    write("base.yaml", f"data: {{src_lang: en, tgt_lang: de, {sources}}}\n")
    mine = "{src: a.en, tgt: a.de}"
    data = load(write("heir.yaml", f"base: base.yaml\ndata: {{train: {mine}, test: {{talks: {mine}}}}}\n")).data
    (train,) = data.train_sources
    assert (train.src, train.dataset, train.split) == (("a.en",), None, None)
    assert data.validation is not None and data.validation_sources[0].dataset == "hub/name"
    assert list(data.test) == ["talks"] and data.src_lang == "en"
    data = load(write("bare.yaml", "base: base.yaml\ndata: {validation: null, test: {}}\n")).data
    assert (data.validation, data.test, data.train_sources[0].split) == (None, {}, "train")


def test_error_names_the_inherited_file_that_contains_it(write: Write) -> None:
    write("base.yaml", MINIMAL + "model:\n  d_modle: 64\n")
    assert error_lines(write("heir.yaml", "base: base.yaml\nseed: x\n")) == [
        'base.yaml:3: model.d_modle: unknown key, did you mean "d_model"?',
        'heir.yaml:2: seed: must be a whole number, such as 10000, not "x"',
    ]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (MINIMAL + "train: {ledger: no}\n", "train.ledger"),
        (MINIMAL.replace("}}", "}, test:\n {t: {table: t.tsv, url: null}}}"), "data.test.t.url"),
        (MINIMAL.replace("}}", "}, filters:\n [script: {tgt: Latin}]}"), "data.filters.0.script.tgt"),
        (MINIMAL.replace("{b", "\n [{name: a, license: CC0, b").replace("}}", "}]}"), "data.train.0.license"),
    ],
)
def test_removed_keys_are_errors_except_in_the_configuration_of_a_run(write: Write, text: str, key: str) -> None:
    run = write("run/config.yaml", text)
    heir = write("heir.yaml", "base: run/config.yaml\nseed: 7\n")
    for path in (run, heir):
        (line,) = error_lines(path)
        assert f"config.yaml:2: {key}: was removed" in line
    write("run/run.json", "{}")
    assert load(run).seed != 7 == load(heir).seed


@pytest.mark.parametrize("name", [name for name in REMOVED if "=" not in name])
def test_names_of_removed_keys_are_not_reused(name: str) -> None:
    """A run is read without removed keys, so one that is a key again would be lost."""
    *path, key = name.split(".")
    assert key not in configuration.list_keys(tuple(0 if part == "*" else part for part in path))


def test_a_test_set_may_be_named_like_a_removed_key(write: Write) -> None:
    run = write("run/config.yaml", MINIMAL.replace("}}", "}, test: {url: {table: t.tsv, url: null}}}"))
    write("run/run.json", "{}")
    assert [*load(run).data.test] == ["url"]


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("a: [1\n", "base.yaml:1: not valid YAML"),
        ("a: 1\na: 2\n", "base.yaml:2: a: duplicate key"),
        (None, "no such file"),
    ],
)
def test_unreadable_base_error_names_both_files(write: Write, base: str | None, message: str) -> None:
    if base is not None:
        write("base.yaml", base)
    said = error_lines(write("heir.yaml", MINIMAL + "base: base.yaml\n"))
    assert message in said[0]
    assert said[1] == "(inherited by heir.yaml:2)"


@pytest.mark.parametrize("names", ["x", "xy", "xyz"])
def test_circular_inheritance_is_refused(write: Write, tmp_path: Path, names: str) -> None:
    for name, following in zip(names, names[1:] + names[0], strict=True):
        write(f"{name}.yaml", f"base: {following}.yaml\n")
    said = error_lines(tmp_path / f"{names[-1]}.yaml")
    circle = " -> ".join(f"{name}.yaml" for name in (names[-1], *names))
    assert said[0].endswith(f"in a circle: {circle}")


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("schedule.peak=1e-4", "schedule.peak", 1e-4),
        ("data.src_lang=no", "data.src_lang", "no"),
        ("name=a=b", "name", "a=b"),
        ("train.max_steps=", "train.max_steps", None),
        ("data.train={src: F, tgt: G}", "data.train.src", ["F"]),
        ("data.test.new={builtin: quickstart, split: test}", "data.test.new.split", "test"),
        ("runs_dir=~/runs", "runs_dir", str(Path.home() / "runs")),
        ("decoding.glossary=~/t.tsv", "decoding.glossary", str(Path.home() / "t.tsv")),
        ("schedule.peak = 1e-4", "schedule.peak", 1e-4),
    ],
)
def test_override_value_is_parsed_as_yaml(write: Write, override: str, key: str, value: object) -> None:
    path = write("x.yaml", MINIMAL + "model: {d_model: 32}\ntokenizer: {joint: no}\n")
    config = load(path, [override, "model.tie_embeddings=none"])
    assert flatten(config)[key] == value


def test_last_override_wins_and_replaces_a_section_as_a_whole(write: Write) -> None:
    path = write("x.yaml", MINIMAL + "model: {d_model: 32, d_ff: 48}\n")
    config = load(path, ["model={d_model: 64}", "model.n_heads=2", "model.n_heads=8"])
    assert (config.model.d_model, config.model.d_ff, config.model.n_heads) == (64, 1024, 8)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.d_modle=1", 'command line: model.d_modle: unknown key, did you mean "d_model"?'),
        ("model", "command line: model: an override is section.key=value"),
        ("seed=[1", "command line: seed:1: not valid YAML"),
        ("name=exp #1", 'command line: name: YAML reads everything after "#" as a comment'),
        ("name=#1", 'command line: name: YAML reads everything after "#" as a comment'),
        ("name=*.en", "command line: name:1: not valid YAML"),
        ('name="a\\0b"', 'command line: name: "a\0b" cannot be the name of a folder'),
        ('data.cache_dir="a\\0b"', "command line: data.cache_dir: a path cannot contain a zero byte"),
        ('name="a\\ud800"', "command line: name:1: holds half a character"),
    ],
)
def test_override_error_names_the_command_line(write: Write, override: str, message: str) -> None:
    (line,) = error_lines(write("x.yaml", MINIMAL), override)
    assert line.startswith(message)


@pytest.mark.parametrize("key", ["name", "runs_dir", "data.cache_dir", "decoding.tag", "decoding.protect_patterns"])
def test_half_a_character_is_refused_with_its_key(key: str, write: Write) -> None:
    value = '["\\ud800"]' if key.endswith("patterns") else '"\\ud800"'
    section, _, inner = key.partition(".")
    text = f"{section}: {{{inner}: {value}}}\n" if inner else f"{section}: {value}\n"
    (line,) = error_lines(write("x.yaml", text))
    assert line.startswith(f"x.yaml:1: {key}") and "half a character" in line


def test_name_defaults_to_the_file_name(write: Write) -> None:
    assert load(write("my.run.yaml", MINIMAL)).name == "my.run"
    assert load(write("y.yaml", MINIMAL + "name: no\n")).name == "no"
    assert load(write("y.yaml", MINIMAL), ["name=other"]).name == "other"


# --- shipped files and rendering --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_rendered_configuration_loads_back_equal(path: Path, write: Write) -> None:
    config = load(path)
    again = load(write("other.yaml", render_yaml(config)))
    assert again == config
    assert render_yaml(again) == render_yaml(config)


@pytest.mark.parametrize(
    "text",
    [
        *("no", "null", "~", "1e-4", "1:30", "012", "a: b", "a #b", "'", '"', "- a", "&a", "*", "{x", "é 猫", " "),
        *("a,b", "a]", "? a", "a\u0085b", "a\u2028b", "\ufeffa", "a\nb", "\U0001f600"),
    ],
)
def test_rendering_preserves_any_text(text: str, write: Write) -> None:
    name = text if text.strip() and text.isprintable() else "blank"  # a test set is named like a folder
    test = {name: {"dataset": text, "split": text}}
    config = make(name="run", runs_dir=text, data={"cache_dir": text, "test": test})
    assert load(write("x.yaml", render_yaml(config))) == config


def keys_of(section: type[Section], prefix: str = "", seen: tuple[type[Section], ...] = ()) -> set[str]:
    """Return every key of a schema. A section class that repeats contributes only keys that have a value."""
    found: set[str] = set()
    for name, about in section.model_fields.items():
        kind = Source if name == "train" and issubclass(section, DataConfig) else about.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= keys_of(kind, f"{prefix}{name}.", seen)
            inner = [Source, *(about.annotation for about in kind.model_fields.values())]
            seen += (kind, *(kind for kind in inner if isinstance(kind, type) and issubclass(kind, Section)))
        elif section not in seen or about.default is not None:
            found.add(prefix + name)
    return found


def test_reference_has_every_key_with_its_default() -> None:
    tree = read_yaml(ROOT / "configs" / "reference.yaml")
    config = load(ROOT / "configs" / "reference.yaml", ["name=x"])
    assert {".".join(map(str, path)) for path in leaves(tree)} == keys_of(Config)
    assert config == make(name="x")


def leaves(tree: Tree) -> set[tuple[str | int, ...]]:
    """Return the paths of all leaves of a tree. A list counts as one leaf."""
    paths = {path for path in tree.locations if not any(isinstance(key, int) for key in path)}
    return paths - {path[:-1] for path in paths if path}


def test_reference_and_schema_are_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "write_reference.py"))
    assert (ROOT / "configs" / "reference.yaml").read_text(encoding="utf-8") == script["reference"]()
    assert (ROOT / "configs" / "schema.json").read_text(encoding="utf-8") == configuration.make_json_schema()
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == script["commands_page"]()


def test_every_key_of_the_reference_has_a_comment() -> None:
    lines = (ROOT / "configs" / "reference.yaml").read_text(encoding="utf-8").split("\n")
    for line in lines:
        assert not line or line.startswith("#") or re.fullmatch(r"\s*\w+:( \S.*)?  # \S.*\S", line), line


def test_schema_has_every_key_and_base() -> None:
    schema = json.loads(configuration.make_json_schema())
    assert set(schema["properties"]) == {*Config.model_fields, "base"}
    assert '"required"' not in configuration.make_json_schema()  # a file may inherit what it lacks
    for name, definition in schema["$defs"].items():
        assert definition["additionalProperties"] is False, name
        assert all("description" in about for about in definition["properties"].values()), name


def test_builtin_quickstart_equals_the_file_in_configs() -> None:
    assert load(configuration.find_preset("quickstart")) == load(ROOT / "configs" / "quickstart.yaml")


# --- keys that may change on resume -----------------------------------------------------------------------------------

MAY_CHANGE_ON_RESUME = {
    *("name", "runs_dir", "device", "compile", "threads"),
    *("data.cache_dir", "data.max_bad_rows"),
    *("train.max_steps", "train.max_epochs", "train.save_every", "train.log_every"),
    "train.cuda_graphs",
    "train.waiting",
    *("validation.every", "validation.patience", "validation.probes"),
    *("decoding.beam", "decoding.restore_case", "decoding.n_best"),
    *("decoding.length_penalty_exponent", "decoding.min_length"),
    *("decoding.sample", "decoding.temperature", "decoding.top_k"),
    *("decoding.top_p", "decoding.seed", "decoding.tag"),
    *("decoding.markup", "decoding.protect_patterns", "decoding.engine"),
    "decoding.quantization",
    *("decoding.glossary", "decoding.guard", "decoding.batch_tokens"),
    *("keep.best", "keep.last"),
}
CHANGED: dict[str, Any] = {
    "name": "other",
    "threads": 3,
    "data.cache_dir": "elsewhere",
    "decoding.protect_patterns": ["x+"],
    "seed": 7,
    "data.train.split": "test",
    "data.validation.builtin": "quickstart",
    "data.test.more.builtin": "quickstart",
    "data.test.with.dot.builtin": "quickstart",
    "model.dropout.residual": 0.7,
    "optimizer.betas": [0.7, 0.7],
    "decoding.max_length_factor": 7.0,
}


def with_key(dotted: str, value: Any) -> Config:
    """Return the minimal configuration with one key changed."""
    first, *others = dotted.split(".", 1)
    if dotted.startswith("data.test."):
        name = dotted.removeprefix("data.test.").rpartition(".")[0]
        return make(data={"test": {name: {"builtin": value, "split": "test"}}})
    if dotted == "data.validation.builtin":
        return make(data={"validation": {"builtin": value, "split": "validation"}})
    if not others:
        return make(**{first: value})
    inner, *deeper = others[0].split(".")
    if first == "data" and inner == "train":
        return make(data={"train": {"builtin": "quickstart", deeper[0]: value}})
    return make(**{first: {inner: {deeper[0]: value} if deeper else value}})


@pytest.mark.parametrize(("key", "value"), CHANGED.items())
def test_changed_keys_separates_allowed_from_fixed(key: str, value: Any) -> None:
    free, fixed = list_changed_keys(make(), with_key(key, value))
    assert (key in free, key in fixed) == (key in MAY_CHANGE_ON_RESUME, key not in MAY_CHANGE_ON_RESUME)
    assert not (fixed if key in MAY_CHANGE_ON_RESUME else free)


def test_list_of_changeable_keys_is_complete() -> None:
    """A new key marked `MAY_CHANGE` must be added to the list above."""
    free = {key for key in keys_of(Config) if may_change_on_resume(key)}
    assert free == MAY_CHANGE_ON_RESUME
