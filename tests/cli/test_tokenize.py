"""`tmt tokenize`: tokens of texts, statistics of files, and wrong arguments."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from helpers import Tmt, assert_user_error

from transformer_mt.cli.tokenize import measure, split_arguments
from transformer_mt.config.root import load
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.data.tokenizers.trainers import build_tokenizers
from transformer_mt.runs.folder import RunFolder


def statistics(report: str) -> dict[str, str]:
    """Return the first number of each line of the statistics."""
    return {found[1].strip(): found[2] for found in re.finditer(r"^  (\w[\w ]+?)  +([\d,.%]+)", report, re.MULTILINE)}


# --- texts ------------------------------------------------------------------------------------------------------------


def test_tokens_and_ids_of_texts_are_printed(tiny_run: Path, tmt: Tmt) -> None:
    tokenizers = TokenizerPair.load(RunFolder(tiny_run).tokenizer)
    (ids,) = tokenizers.src.encode(["one seven\t"])
    done = tmt("tokenize", tiny_run, "one seven\t", "", "n=e")
    assert done.returncode == 0
    pieces, numbers, *empty, last, _, end = done.stdout.split("\n")
    assert "".join(pieces.split(" ")) == "▁one▁seven<0x09>"
    assert numbers == " ".join(map(str, ids))
    assert (empty, end) == (["", ""], "")
    assert "".join(last.split(" ")) == "▁n<0x3D>e"


def test_overrides_are_told_from_texts() -> None:
    overrides = ["data.test.flickr-2016={src: a, tgt: b}", "model={}", "seed=1"]
    assert split_arguments(Path("x.yaml"), ["one = 1", *overrides, "n=e"]) == (["one = 1", "n=e"], overrides)


def test_lines_of_standard_input_are_tokenized(tiny_run: Path, tmt: Tmt) -> None:
    expected = tmt("tokenize", tiny_run, "one two", "", "three").stdout
    assert len(expected.split("\n")) == 7
    assert tmt("tokenize", tiny_run, stdin=b"one two\n\nthree\n").stdout == expected
    assert tmt("tokenize", tiny_run, stdin=b"").stdout == ""


@pytest.mark.parametrize("kind", ["word", "char", "wordpiece", "bpe", "byte_bpe", "unigram"])
def test_each_kind_of_tokenizer_is_shown(kind: str, in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("tokenize", "tiny.yaml", f"tokenizer.kind={kind}", "one two", "猫")
    assert done.returncode == 0, done.stderr
    pieces, *_, unknown, _, _ = done.stdout.split("\n")
    joined = pieces.replace(" ", "").replace("Ġ", "▁").replace("##", "")
    assert joined == "▁one▁two"
    assert ("<unk>" in unknown) == (kind in ("word", "wordpiece"))


def test_side_selects_the_tokenizer(in_tiny: Path, tmt: Tmt) -> None:
    separate = ("tokenize", "tiny.yaml", "tokenizer.joint=no", "model.tie_embeddings=decoder", "drei")
    src, tgt = (tmt(*separate, "--side", side).stdout.split("\n")[0] for side in ("src", "tgt"))
    assert (len(src.split(" ")), tgt) == (5, "▁drei")
    assert tmt(*separate).stdout.split("\n")[0] == src


# --- figures ----------------------------------------------------------------------------------------------------------


def test_statistics_of_a_file_are_printed(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one two three\n\none  two\n", encoding="utf-8")
    done = tmt("tokenize", tiny_run, "--input", tmp_path / "f")
    assert done.stdout.startswith(f"{tmp_path}/f\n")
    found = statistics(done.stdout)
    assert (found["lines"], found["words"], found["pieces"]) == ("3", "5", "6")
    assert (found["pieces per word"], found["characters per piece"]) == ("1.200", "3.500")
    assert (found["unknown"], found["round trip"]) == ("0.00%", "100.00%")
    (tmp_path / "f.gz").write_bytes(gzip.compress((tmp_path / "f").read_bytes()))
    assert statistics(tmt("tokenize", tiny_run, "--input", tmp_path / "f.gz").stdout) == found


def test_lines_that_are_not_restored_are_shown_with_their_numbers(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one two\none NINE\n\n猫\nTEN\nELEVEN\n", encoding="utf-8")
    done = tmt("tokenize", "tiny.yaml", "tokenizer.kind=word", "--input", tmp_path / "f")
    found = statistics(done.stdout)
    assert (found["unknown"], found["round trip"]) == (f"{4 / 7:.2%}", f"{2 / 6:.2%}")
    shown = done.stdout[done.stdout.index("    line") :]
    assert shown == (
        '    line 2: "one NINE"\n       became "one ⁇"\n'
        '    line 4: "猫"\n       became "⁇"\n'
        '    line 5: "TEN"\n       became "⁇"\n'
    )


def test_statistics_of_the_validation_pairs_are_the_default(in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("tokenize", "tiny.yaml")
    src, tgt = done.stdout.split("tgt, validation pairs\n")
    assert src.startswith("src, validation pairs\n")
    assert statistics(src)["lines"] == statistics(tgt)["lines"] == "8"
    assert statistics(src)["words"] == "24"
    assert "src, validation" not in tmt("tokenize", "tiny.yaml", "--side", "tgt").stdout


def test_statistics_do_not_depend_on_the_window_size(in_tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(Path("tiny.yaml"), ["tokenizer.kind=word"])
    tokenizer = build_tokenizers(config.tokenizer, [("one two", "eins zwei")] * 3).src
    lines = ["one two", "", "NINE", "two one  one"] * 9
    whole = measure(tokenizer, iter(lines))
    assert whole.lines == 36
    assert whole.unknown == sum(ids.count(tokenizer.unk_id) for ids in tokenizer.encode(lines))
    monkeypatch.setattr("transformer_mt.cli.tokenize.WINDOW_LINES", 5)
    assert measure(tokenizer, iter(lines)) == whole


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope.yaml",), "nope.yaml: no such run folder and no such YAML file"),
        (("W",), "is not a run folder"),
        (("tiny.yaml", "one", "--input", "train.en"), "tokenize: give texts or --input, not both"),
        (("tiny.yaml", "--input", "nope"), "nope: no such file"),
        (("tiny.yaml", "--input", "W"), "is a directory; pass a file"),
        (("tiny.yaml", "--side", "both"), "invalid choice: 'both'"),
        (("tiny.yaml", "tokenizer.kind=bpee"), 'tokenizer.kind: "bpee" is not allowed, did you mean "bpe"?'),
        (("tiny.yaml", "tokenizer.vocab_size=99999999999"), "tokenizer.vocab_size: Input should be less than or equal"),
        (("tiny.yaml", "tokenizer.vocab_size=100"), "tokenizer.vocab_size: 100 is too small: bpe needs 260 or more"),
        (("tiny.yaml", "tokenizer={kind: wordpiece, vocab_size: 20}"), "vocab_size: 20 is too small: wordpiece"),
        (("tiny.yaml", "tokenizer={kind: char, merges: 9}"), "tokenizer.merges: char has no merges"),
        (("tiny.yaml", "tokenizer={kind: word, sampling: 0.1}"), "tokenizer.sampling: word cannot sample subwords"),
        (("tiny.yaml", "tokenizer.normalization=[NFC, lower]"), 'tokenizer.normalization.1: "lower" is not allowed'),
        (("tiny.yaml", "tokenizer.pre_tokenization=[spaces]"), 'tokenizer.pre_tokenization.0: "spaces" is not allowed'),
        (("tiny.yaml", "tokenizer.file=nope.json"), "tokenizer.file: nope.json: no such file (looked in"),
        (("tiny.yaml", "tokenizer.file=train.en"), "tokenizer.file: train.en: is not a tokenizer.json"),
        (("tiny.yaml", "tokenizer.file=W"), "is a directory; set it to a tokenizer.json"),
        (("tiny.yaml", "tokenizer.src_file=train.en"), "tokenizer.src_file: src_file and tgt_file must be set"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(
    arguments: tuple[str, ...], message: str, in_tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    done = tmt("tokenize", *(argument.replace("W", str(tmp_path)) for argument in arguments))
    assert_user_error(done, message)
    assert done.stdout == ""


def test_a_tokenizer_file_of_another_kind_is_refused(tiny_run: Path, in_tiny: Path, tmt: Tmt) -> None:
    own = f"tokenizer.file={RunFolder(tiny_run).tokenizer}"
    done = tmt("tokenize", "tiny.yaml", own, "tokenizer.kind=unigram")
    assert_user_error(done, "holds bpe, but tokenizer.kind is unigram; set tokenizer.kind: bpe")
    assert tmt("tokenize", "tiny.yaml", own, "one").stdout == tmt("tokenize", tiny_run, "one").stdout


def test_missing_test_sets_are_not_needed(in_tiny: Path, tmt: Tmt) -> None:
    done = tmt("tokenize", "tiny.yaml", "data.test={gone: {src: gone.en, tgt: gone.de}}")
    assert done.returncode == 0, done.stderr
