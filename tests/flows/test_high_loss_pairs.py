"""The losses of the training pairs belong to the right lines, and pairs with a high loss get a likely reason."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Tmt, assert_succeeded, assert_user_error

from transformer_mt.data.corpus import ParallelCorpus
from transformer_mt.data.sources import load_pairs
from transformer_mt.data.tokenizers.tokenizer import TokenizerPair
from transformer_mt.decoding.translator import Translator
from transformer_mt.flows.configuration import Config, find_builtin_config, load, load_run
from transformer_mt.flows.prepare import load_split
from transformer_mt.runs.folder import RunFolder
from transformer_mt.tools.quality.high_loss_pairs import NO_REASON, find_reasons, take_block

TRAIN = ("train", "--config", "tiny.yaml", "train.max_steps=8", "validation.every=8", "data.test={}")
CLEANED = ("data.validation=null", "data.filters=[{regex: {drop: '^one two'}}]", "data.max_length=9")


@pytest.fixture(scope="module")
def cleaned_run(tiny: Path, tmt: Tmt, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on pairs of which some are empty, too long, filtered out or held out. Return the run."""
    folder = tmp_path_factory.mktemp("cleaned")
    shutil.copytree(tiny, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs"))
    lines = (folder / "train.en").read_text(encoding="utf-8").split("\n")
    lines[3], lines[5] = "", lines[5] * 9
    (folder / "train.en").write_text("\n".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert_succeeded(tmt(*TRAIN, *CLEANED))
    return folder / "runs" / "tiny"


@pytest.fixture
def here(cleaned_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the run with its texts to a folder that the test may modify, change to it, and return the run."""
    shutil.copytree(cleaned_run.parents[1], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("runs/tiny")


def list_worst(tmt: Tmt, run: Path, count: int) -> list[dict[str, Any]]:
    return json.loads(assert_succeeded(tmt("check", run, "--worst", str(count), "--json")))["pairs"]


def test_each_loss_is_that_of_the_finished_model_for_the_original_line(here: Path, tmt: Tmt) -> None:
    pairs = list_worst(tmt, here, 999)
    lines = [int(pair["location"].removeprefix("train.en:")) for pair in pairs]
    src, tgt = (Path(f"train.{side}").read_text(encoding="utf-8").split("\n") for side in ("en", "de"))
    assert [(pair["src"], pair["tgt"]) for pair in pairs] == [(src[line - 1], tgt[line - 1]) for line in lines]
    assert len({*lines}) == len(lines) and 20 < len(lines) < 48
    assert not {4, 6} & {*lines}  # dropped
    assert not any(pair["src"].startswith("one two") for pair in pairs)
    scored = Translator.load(here).score([pair["src"] for pair in pairs], [pair["tgt"] for pair in pairs])
    losses = [-each.score_per_token for each in scored]
    np.testing.assert_allclose([pair["loss"] for pair in pairs], losses, rtol=1e-4)


def test_worst_pairs_are_listed_by_their_excess(here: Path, tmt: Tmt) -> None:
    listed = list_worst(tmt, here, 5)
    assert listed == list_worst(tmt, here, 999)[:5]
    assert [pair["excess"] for pair in listed] == sorted((pair["excess"] for pair in listed), reverse=True)
    header, *rows = assert_succeeded(tmt("check", here, "--worst", "5")).splitlines()
    assert header.split("  ")[0] == "loss"
    assert [row.split()[2] for row in rows] == [found["location"] for found in listed]


def test_changed_text_is_refused(here: Path, tmt: Tmt) -> None:
    text = Path("train.en").read_text(encoding="utf-8")
    Path("train.en").write_text(text.replace("one three", "one seven"), encoding="utf-8")
    assert_user_error(tmt("check", here, "--worst", "5"), "the text of data.train has changed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tiny.yaml", "--worst", "5"), "tiny.yaml is a configuration; pass the folder of a run"),
        (("runs/tiny", "--worst", "0"), "--worst: 0: pass a whole number"),
    ],
)
def test_wrong_arguments_are_refused(here: Path, tmt: Tmt, arguments: tuple[str, ...], message: str) -> None:
    assert_user_error(tmt("check", *arguments), message)


# --- ranking and reasons ----------------------------------------------------------------------------------------------


def test_excess_is_what_the_frequency_of_the_tokens_does_not_explain(here: Path, tmt: Tmt) -> None:
    run = RunFolder.open(here)
    pairs = list_worst(tmt, here, 999)
    tokenizer = TokenizerPair.load(run.tokenizer).tgt
    ids = tokenizer.encode([pair["tgt"] for pair in pairs])
    text = [*load_split(load_run(run), "train")]  # with the pairs that are empty or too long
    assert len(text) > len(pairs)
    counts = Counter(chain.from_iterable(ids))
    src_counts = Counter(chain.from_iterable(tokenizer.encode([src for src, _ in text])))
    frequency = {i: counts[i] + src_counts[i] * len(pairs) / len(text) for i in counts | src_counts}
    total = sum(frequency.values())
    rarity = [sum(-math.log(frequency[i] / total) for i in sentence) / (len(sentence) + 1) for sentence in ids]
    excess = np.array([pair["loss"] for pair in pairs]) - rarity
    np.testing.assert_allclose([pair["excess"] for pair in pairs], excess - np.median(excess), rtol=1e-4, atol=1e-5)


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
    reasons = find_reasons(config.data, corpus, take_block(corpus, np.array([50, 200], np.int64)))
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
    block = take_block(corpus, np.array([30, 20, 10, 40], np.int64))
    assert block.lines.tolist() == [31, 21, 11, 41]
    reasons = find_reasons(config.data, corpus, block)
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
    block = take_block(corpus, np.array([402, 401, 101 + 200, 101 + 5, 100], np.int64))
    reasons = find_reasons(config.data, corpus, block)
    assert reasons[0] == "language: target is de" and reasons[1] == NO_REASON
    assert reasons[2] == "misaligned: source line N corresponds to target line N+1" and reasons[3] == NO_REASON
    assert reasons[4] == "language: target is fr"
    assert corpus.describe_line(101 + 5) == f"{tmp_path}/back.de:6" and block.src[3] == de[5]
