"""`tmt config`: the printed configuration and schema, and the tokens of texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.config.yaml_files import render_yaml
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.flows import configuration
from transformer_mt.runs.folder import RunFolder


def test_config_prints_yaml_that_loads_to_the_same_configuration(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    done = tmt("config", "tiny.yaml", "seed=7", "schedule.peak=1e-4")
    (tmp_path / "again.yaml").write_text(done.stdout, encoding="utf-8")
    again = configuration.load(tmp_path / "again.yaml")
    assert again == configuration.load(in_tiny / "tiny.yaml", ["seed=7", "schedule.peak=1e-4"])
    assert (again.seed, again.schedule.peak, again.name) == (7, 1e-4, "tiny")
    assert tmt("config", tmp_path / "again.yaml").stdout == done.stdout


def test_config_without_a_file_prints_the_quickstart(tmt: Tmt) -> None:
    quickstart = configuration.load(configuration.find_preset("quickstart"))
    assert tmt("config").stdout == render_yaml(quickstart)
    assert tmt("config", "seed=7").stdout == render_yaml(quickstart.model_copy(update={"seed": 7}))


def test_an_override_may_be_longer_than_a_file_name(tmt: Tmt) -> None:
    done = tmt("config", f"tokenizer.normalization=[{', '.join(['NFC'] * 100)}]")
    assert done.returncode == 0, done.stderr


def test_config_prints_the_json_schema(tmt: Tmt) -> None:
    assert tmt("config", "--schema").stdout == configuration.make_json_schema()


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_and_ids_of_texts_are_printed(tiny_run: Path, tmt: Tmt) -> None:
    (ids,) = TokenizerPair.load(RunFolder(tiny_run).tokenizer).src.encode(["one seven\t"])
    done = tmt("config", tiny_run, "--tokens", "one seven\t", "--tokens", "")
    assert done.returncode == 0, done.stderr
    pieces, numbers, *empty, end = done.stdout.split("\n")
    assert "".join(pieces.split(" ")) == "▁one▁seven<0x09>"
    assert numbers == " ".join(map(str, ids))
    assert (empty, end) == (["", ""], "")


def test_source_tokens_are_those_that_the_model_reads(tiny_run: Path, tmt: Tmt) -> None:
    plain = tmt("config", tiny_run, "--tokens", "one two").stdout.split("\n")
    source, _, target, *_ = tmt("config", tiny_run, "--tokens", "one\u00a0t\u00adwo").stdout.split("\n")
    assert source == plain[0] != target


@pytest.mark.parametrize("kind", ["word", "byte_bpe"])
def test_each_kind_of_tokenizer_is_shown(kind: str, in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("config", "tiny.yaml", f"tokenizer.kind={kind}", "--tokens", "one two", "--tokens", "猫")
    assert done.returncode == 0, done.stderr
    pieces, *_, unknown, _, _ = done.stdout.split("\n")
    joined = pieces.replace(" ", "").replace("Ġ", "▁")
    assert joined == "▁one▁two"
    assert ("<unk>" in unknown) == (kind == "word")


def test_separate_vocabularies_are_both_shown(in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("config", "tiny.yaml", "tokenizer.joint=no", "model.tie_embeddings=decoder", "--tokens", "drei")
    src, _, tgt, _, _ = done.stdout.split("\n")
    assert (len(src.split(" ")), tgt) == (5, "▁drei")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope.yaml",), "nope.yaml: no such run folder and no such YAML file"),
        (("tiny.yaml", "--schema"), "not allowed with argument --schema"),
        (("tiny.yaml", "tokenizer.vocab_size=100"), "tokenizer.vocab_size: 100 is too small: bpe needs 260 or more"),
        (("tiny.yaml", "tokenizer={kind: char, merges: 9}"), "tokenizer.merges: char has no merges"),
        (("tiny.yaml", "tokenizer.file=nope.json"), "tokenizer.file: nope.json: no such file (looked in"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], message: str, in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("config", *arguments, "--tokens", "one")
    assert_user_error(done, message)
    assert done.stdout == ""


def test_a_tokenizer_file_of_another_kind_is_refused(tiny_run: Path, in_tiny: Path, tmt: Tmt) -> None:
    own = f"tokenizer.file={RunFolder(tiny_run).tokenizer}"
    done = tmt("config", "tiny.yaml", own, "tokenizer.kind=unigram", "--tokens", "one")
    assert_user_error(done, "set tokenizer.kind: bpe")
    same = [tmt("config", *given, "--tokens", "one").stdout for given in (("tiny.yaml", own), (tiny_run,))]
    assert same[0] == same[1] != ""


def test_missing_test_sets_are_not_needed(in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("config", "tiny.yaml", "--tokens", "one", "data.test={gone: {src: gone.en, tgt: gone.de}}")
    assert done.returncode == 0, done.stderr
