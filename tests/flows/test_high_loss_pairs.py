"""The losses of a run belong to the right lines, and pairs with a high loss get a likely reason."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.config.root import Config, find_builtin_config, load, load_run
from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.errors import UserError
from transformer_mt.flows.prepare import load_split
from transformer_mt.runs.checkpoints import STATE
from transformer_mt.runs.folder import RunFolder
from transformer_mt.runs.records import write_manifest
from transformer_mt.tools.quality.high_loss_pairs import (
    NO_REASON,
    argsort_descending,
    find_reasons,
    load_losses,
    take_block,
)

TRAIN = (
    "train",
    "--config",
    "tiny.yaml",
    "train.ledger=true",
    "train.max_steps=8",
    "validation.every=8",
    "data.test={}",
)
CLEANED = ("data.validation=null", "data.filters=[{regex: {drop: '^one two'}}]", "data.max_length=9")


@pytest.fixture(scope="module")
def ledger_run(tiny: Path, tmt: Tmt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with a ledger on pairs of which some are empty, too long, filtered out or held out. Return the run."""
    folder = tmp_path_factory.mktemp("ledger")
    shutil.copytree(tiny, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs"))
    lines = (folder / "train.en").read_text(encoding="utf-8").split("\n")
    lines[3], lines[5] = "", lines[5] * 9
    (folder / "train.en").write_text("\n".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert_succeeded(tmt(*TRAIN, *CLEANED))
    return folder / "runs" / "tiny"


@pytest.fixture
def here(ledger_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the run with its texts to a folder that the test may modify, change to it, and return the run."""
    shutil.copytree(ledger_run.parents[1], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("runs/tiny")


def test_each_loss_has_the_original_line_of_its_pair(here: Path) -> None:
    run = RunFolder.open(here)
    pairs = [*load_losses(run, load_run(run))]
    src, tgt = (Path(f"train.{side}").read_text(encoding="utf-8").split("\n") for side in ("en", "de"))
    assert [(pair.src, pair.tgt) for pair in pairs] == [(src[pair.line - 1], tgt[pair.line - 1]) for pair in pairs]
    assert {pair.file for pair in pairs} == {"train.en"}
    assert not {4, 6} & {pair.line for pair in pairs}  # dropped
    assert not any(pair.src.startswith("one two") for pair in pairs)
    assert 20 < len(pairs) < 48
    assert np.isfinite([pair.loss for pair in pairs]).all()


def test_the_corpus_is_encoded_again_if_the_cache_is_gone(here: Path) -> None:
    run = RunFolder.open(here)
    before = [*load_losses(run, load_run(run))]
    shutil.rmtree("runs/.cache")
    assert [*load_losses(run, load_run(run))] == before


def test_worst_pairs_are_listed_with_their_losses(here: Path, tmt: Tmt) -> None:
    listed = json.loads(assert_succeeded(tmt("check", here, "--worst", "5", "--json")))["pairs"]
    run = RunFolder.open(here)
    expected = sorted(load_losses(run, load_run(run)), key=lambda pair: -pair.excess)[:5]
    for found, pair in zip(listed, expected, strict=True):
        assert found["location"] == f"{pair.file}:{pair.line}"
        assert (found["loss"], found["excess"]) == (pair.loss, pair.excess)
        assert (found["src"], found["tgt"]) == (pair.src, pair.tgt)
    header, *rows = assert_succeeded(tmt("check", here, "--worst", "5")).splitlines()
    assert header.split("  ")[0] == "loss"
    assert [row.split()[2] for row in rows] == [found["location"] for found in listed]


def test_repair_of_a_run_says_that_it_used_the_losses(here: Path, tmt: Tmt) -> None:
    report = json.loads(assert_succeeded(tmt("repair", here, "--output", "first", "--json")))
    assert report["used_ledger"] is True
    assert json.loads(Path("first/repair.json").read_text(encoding="utf-8"))["used_ledger"] is True
    assert "are in second (with the training ledger)" in assert_succeeded(tmt("repair", here, "--output", "second"))


def test_more_pairs_than_the_run_has_are_all_listed(here: Path, tmt: Tmt) -> None:
    run = RunFolder.open(here)
    listed = json.loads(assert_succeeded(tmt("check", here, "--worst", "999", "--json")))["pairs"]
    assert len(listed) == len([*load_losses(run, load_run(run))])


def test_a_run_without_ledger_is_refused_with_the_remedy(in_tiny: Path, tiny_run: Path, tmt: Tmt) -> None:
    assert_user_error(tmt("check", tiny_run, "--worst", "5"), "has no training ledger; train with train.ledger=true")


def test_a_checkpoint_without_training_state_has_no_ledger(here: Path, tmt: Tmt) -> None:
    last = RunFolder.open(here).find_checkpoint("last")
    (last.path / STATE).unlink()
    write_manifest(last.path / "checkpoint.json", {"step": last.step, "metric": last.metric, "scores": last.scores})
    assert_user_error(tmt("check", here, "--worst", "5"), "its last checkpoint has no training ledger")


def test_changed_text_is_refused(here: Path, tmt: Tmt) -> None:
    text = Path("train.en").read_text(encoding="utf-8")
    Path("train.en").write_text(text.replace("one three", "one seven"), encoding="utf-8")
    assert_user_error(tmt("check", here, "--worst", "5"), "the text of data.train has changed")


def test_another_length_limit_is_refused(here: Path) -> None:
    run = RunFolder.open(here)
    with pytest.raises(UserError, match=r"the ledger has \d+ losses for \d+ training pairs"):
        load_losses(run, load_run(run, ["data.too_long=truncate"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny.yaml", "--worst", "5"), "tiny.yaml is a configuration; pass the folder of a run"),
        (("runs/tiny", "--worst", "0"), "--worst 0: pass at least 1 pair"),
    ],
)
def test_wrong_arguments_are_refused(here: Path, tmt: Tmt, arguments: tuple[str, ...], message: str) -> None:
    assert_user_error(tmt("check", *arguments), message)


# --- ranking and reasons ----------------------------------------------------------------------------------------------


def test_excess_is_what_the_frequency_of_the_tokens_does_not_explain(here: Path) -> None:
    run = RunFolder.open(here)
    pairs = [*load_losses(run, load_run(run))]
    tokenizer = TokenizerPair.load(run.tokenizer).tgt
    ids = tokenizer.encode([pair.tgt for pair in pairs])
    text = [*load_split(load_run(run), "train")]  # with the pairs that are empty or too long
    assert len(text) > len(pairs)
    counts = Counter(chain.from_iterable(ids))
    src_counts = Counter(chain.from_iterable(tokenizer.encode([src for src, _ in text])))
    frequency = {i: counts[i] + src_counts[i] * len(pairs) / len(text) for i in counts | src_counts}
    total = sum(frequency.values())
    rarity = [sum(-math.log(frequency[i] / total) for i in sentence) / (len(sentence) + 1) for sentence in ids]
    excess = np.array([pair.loss for pair in pairs]) - rarity
    np.testing.assert_allclose([pair.excess for pair in pairs], excess - np.median(excess), rtol=1e-4, atol=1e-5)


def test_pairs_that_were_not_seen_are_not_ranked() -> None:
    excess = np.array([0.5, np.nan, 2.0, -1.0, 0.5], np.float32)
    assert argsort_descending(excess, 2).tolist() == [2, 0]
    assert argsort_descending(excess, 99).tolist() == [2, 0, 4, 3]


def write_corpus(folder: Path, pairs: list[tuple[str, str]], name: str = "a") -> str:
    """Write both sides, and return the keys of the source."""
    for side, language in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return f"src: {folder}/{name}.en, tgt: {folder}/{name}.de"


def load_text(folder: Path, train: str) -> tuple[Config, ParallelCorpus]:
    overrides = (f"data.train={train}", "data.test={}", f"data.cache_dir={folder}/cache")
    config = load(find_builtin_config("quickstart"), overrides)
    return config, load_split(config, "train")


def test_misaligned_lines_are_a_reason(tmp_path: Path) -> None:
    en, de = map(list, zip(*load_pairs("train")[:300], strict=True))
    del de[100]
    config, corpus = load_text(tmp_path, f"{{{write_corpus(tmp_path, [*zip(en, de, strict=False)])}}}")
    reasons = find_reasons(config, corpus, take_block(corpus, np.array([50, 200], np.int32)))
    assert reasons == [NO_REASON, "misaligned: source line N corresponds to target line N-1"]


def test_likely_reason_names_the_checks_that_find_the_pair(tmp_path: Path) -> None:
    pairs = [(en, de) for en, de in load_pairs("train")[:300]]
    planted = {
        10: (pairs[10][0], pairs[10][0]),
        20: ("It weighs 1457 grams and 8310 tons.", "Es wiegt 9911 Gramm und 7264 Tonnen."),
        30: (pairs[30][0], "ja " * 9),
    }
    for row, pair in planted.items():
        pairs[row] = pair
    config, corpus = load_text(tmp_path, f"{{{write_corpus(tmp_path, pairs)}}}")
    block = take_block(corpus, np.array([30, 20, 10, 40], np.int32))
    assert block.lines.tolist() == [31, 21, 11, 41]
    reasons = find_reasons(config, corpus, block)
    assert "repetition: target repeats itself" in reasons[0]
    assert "numbers: only 0% of the numbers agree" in reasons[1]
    assert "copy: 100% of the words are the same" in reasons[2]
    assert reasons[3] == NO_REASON


def test_reasons_are_judged_by_the_languages_of_the_source(tmp_path: Path) -> None:
    """Source `back` is German to English, and its lines are shifted. In source `fr`, the target must be French."""
    english = "The old doctor did not open the window, because it was very cold outside."
    german = "Der alte Arzt hat das Fenster nicht geöffnet, weil es draußen sehr kalt war."
    french = "Le vieux médecin n'a pas ouvert la fenêtre, parce qu'il faisait très froid dehors."
    en, de = map(list, zip(*load_pairs("train")[:300], strict=True))
    front = write_corpus(tmp_path, [*zip(en[:100], de[:100], strict=True), (english, french)], "front")
    back = write_corpus(tmp_path, [*zip(en, [*de[:150], *de[151:], "Ja."], strict=True)], "back")
    fr = write_corpus(tmp_path, [(english, french), (english, german)], "fr")
    train = (
        f"[{{name: front, {front}}}, {{name: back, {back}, reverse: true}}, {{name: fr, {fr}, tgt_lang: fr, tag: fr}}]"
    )
    config, corpus = load_text(tmp_path, train)
    block = take_block(corpus, np.array([402, 401, 101 + 200, 101 + 5, 100], np.int32))
    reasons = find_reasons(config, corpus, block)
    assert reasons[0] == "language: target is de" and reasons[1] == NO_REASON
    assert reasons[2] == "misaligned: source line N corresponds to target line N+1" and reasons[3] == NO_REASON
    assert reasons[4] == "language: target is fr"
    assert corpus.describe_line(101 + 5) == f"{tmp_path}/back.de:6" and block.src[3] == de[5]
