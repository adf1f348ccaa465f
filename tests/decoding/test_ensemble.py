"""Ensembles: mean probabilities, compared with a reference search, and checks of the runs."""

from __future__ import annotations

import copy
import json
import math
import shlex
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import cast

import pytest
import torch
from helpers import load_plain

from transformer_mt import Translator
from transformer_mt.data.batches import collate_sources
from transformer_mt.data.sources import load_pairs
from transformer_mt.decoding.engine import TorchEngine, align_batch, check_compatible, load_model
from transformer_mt.decoding.interface import Hypothesis
from transformer_mt.errors import UserError
from transformer_mt.flows import configuration
from transformer_mt.model.transformer import Transformer, cross_attention_weights
from transformer_mt.runs.folder import RunFolder

MakeTranslator = Callable[..., Translator]
Tmt = Callable[..., "CompletedProcess[str]"]
SOURCES = [src for src, _ in load_pairs("test")[300:324]]
TARGETS = [tgt for _, tgt in load_pairs("test")[300:324]]


def make_alone(model: Transformer, together: Translator) -> Translator:
    """Return a translator with one model of an ensemble."""
    return Translator(TorchEngine([model], together.tokenizers), together.tokenizers, together.config)


@pytest.fixture(scope="module")
def models(make_translator: MakeTranslator, make_model: Callable[..., Transformer]) -> list[Transformer]:
    """A trained model, a noisy copy, and a model with another architecture."""
    one = make_translator()
    noisy = copy.deepcopy(one.model)
    torch.manual_seed(1)
    for parameter in noisy.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    src, tgt = one.tokenizers.src, one.tokenizers.tgt
    sizes, pads = (src.vocab_size, tgt.vocab_size), (src.pad_id, tgt.pad_id)
    other = make_model(vocab=sizes, pad=pads, norm_position="post", positions="learned", max_positions=100, rough=0.1)
    return [one.model, noisy, other]


@pytest.fixture(scope="module")
def make_ensemble(make_translator: MakeTranslator, models: list[Transformer]) -> MakeTranslator:
    """`make_ensemble(n, **decoding)`: of the first n models."""

    def make_ensemble(n: int = 3, **decoding: int) -> Translator:
        one = make_translator(**decoding)
        return Translator(TorchEngine(models[:n], one.tokenizers), one.tokenizers, one.config)

    return make_ensemble


@pytest.mark.parametrize("beam", [1, 3])
def test_ensemble_equals_reference_search_over_mean_probabilities(
    make_ensemble: MakeTranslator,
    models: list[Transformer],
    reference_search: Callable[..., list[Hypothesis]],
    assert_same: Callable[[Sequence[Hypothesis], Sequence[Hypothesis]], None],
    beam: int,
) -> None:
    """The reference recomputes all prefixes at each position with torch's softmax."""
    translator = make_ensemble(beam=beam)
    tokenizers, config = translator.tokenizers, translator.config
    coded = tokenizers.src.encode(SOURCES[:3])
    found = translator.engine.search(coded, config)
    for ids, hypotheses in zip(coded, found, strict=True):

        @torch.no_grad()
        def scores(prefixes: list[list[int]], ids: list[int] = ids) -> list[list[float]]:
            src = collate_sources([ids] * len(prefixes), tokenizers)
            tgt_in = torch.tensor([[tokenizers.tgt.bos_id, *written] for written in prefixes])
            each = [model.logits(model(src, tgt_in)[:, -1]).double().softmax(-1) for model in models]
            return cast("list[list[float]]", torch.stack(each).mean(0).log().tolist())

        assert_same(
            hypotheses, reference_search(scores, config.max_target_tokens(len(ids)), config, tokenizers.tgt.eos_id)
        )


def test_every_member_changes_the_translations(make_ensemble: MakeTranslator, models: list[Transformer]) -> None:
    """Otherwise the comparison with the reference would not see each member."""
    together = make_ensemble()
    alone = [make_alone(model, together).translate(SOURCES[:8]) for model in models]
    for one, other in pairwise(
        [*alone, together.translate(SOURCES[:8]), make_ensemble(2).translate(SOURCES[:8]), alone[0]]
    ):
        assert one != other


def test_scores_are_logarithms_of_mean_probabilities(make_ensemble: MakeTranslator, models: list[Transformer]) -> None:
    together = make_ensemble()
    alone = [make_alone(model, together).score(SOURCES, TARGETS) for model in models]
    for found, *ones in zip(together.score(SOURCES, TARGETS), *alone, strict=True):
        likely = zip(*(map(math.exp, one.token_scores) for one in ones), strict=True)
        wanted = [math.log(sum(of_token) / len(models)) for of_token in likely]
        assert found.token_scores == pytest.approx(wanted, abs=1e-4)


def test_shortest_position_table_limits_the_source(make_ensemble: MakeTranslator) -> None:
    assert make_ensemble().max_source_tokens == 99
    assert make_ensemble(2).max_source_tokens == make_ensemble(2).config.max_source_length


def test_alignment_uses_mean_attention_of_the_members(
    make_ensemble: MakeTranslator, models: list[Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_ensemble().tokenizers
    (source,), (target,) = pair.src.encode(SOURCES[:1]), pair.tgt.encode(TARGETS[:1])
    read = torch.tensor([[pair.tgt.bos_id, *target[:-1]]])
    weights: list[torch.Tensor] = []
    for model in models:
        cross = cross_attention_weights(model, collate_sources([source], pair), read)
        weights.append(torch.stack(cross).mean((0, 2))[0])
    linked: list[torch.Tensor] = []
    monkeypatch.setattr("transformer_mt.decoding.engine.align_words", lambda given, *_: linked.append(given))
    align_batch(models, pair, [source], pair.src.word_indices(SOURCES[:1]), [target])
    wanted = torch.stack(weights).mean(0)[:, : len(source)]
    assert linked[0] == pytest.approx(wanted, abs=1e-5)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def second(tiny: Path, tiny_run: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A second run with the tokenizers of `tiny_run`."""
    monkeypatch.chdir(tiny)
    assert tmt("export", tiny_run, "--average", 2, "--output", tmp_path / "mean").returncode == 0
    return tmp_path / "mean"


@pytest.fixture
def pairs_here(second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Change to a writable folder with parallel texts, and return the `--src` option."""
    monkeypatch.chdir(tmp_path)
    Path("f").write_text("one two three\nfour five six\nsix one eight\n", encoding="utf-8")
    Path("g").write_text("eins zwei drei\nvier fünf sechs\nsechs eins acht\n", encoding="utf-8")
    return ["--src", "f"]


def test_commands_accept_further_runs(tiny_run: Path, second: Path, tmt: Tmt, pairs_here: list[object]) -> None:
    """`translate`, also with --score-targets, and `evaluate` give the results of an ensemble built in Python."""
    ones = [load_plain(run, precision="fp32") for run in (tiny_run, second)]
    together = Translator(
        TorchEngine([one.model for one in ones], ones[0].tokenizers), ones[0].tokenizers, ones[0].config
    )
    texts = Path("f").read_text(encoding="utf-8").split("\n")[:-1]
    wanted = together.n_best(texts)
    assert wanted != ones[0].n_best(texts)
    with_second = ("--ensemble", second, "--precision", "fp32")
    done = tmt("translate", tiny_run, "--input", "f", "--format", "json", *with_second)
    found = [json.loads(line)["translations"][0] for line in done.stdout.split("\n")[:-1]]
    assert [one["text"] for one in found] == [best.text for best, *_ in wanted]
    assert [one["score"] for one in found] == pytest.approx([best.score for best, *_ in wanted], abs=1e-5)
    done = tmt("translate", tiny_run, "--input", "f", "--score-targets", "g", *with_second)
    scores = together.score(texts, Path("g").read_text(encoding="utf-8").split("\n")[:-1])
    assert done.stdout.split("\n")[:-1] == [f"{one.score:.4f}\t{one.score_per_token:.4f}" for one in scores]
    files = (*pairs_here, "--ref", "g", *with_second)
    assert "beam 5, step 12 + 12, " in tmt("evaluate", tiny_run, *files).stdout
    about = json.loads(tmt("evaluate", tiny_run, *files, "--json").stdout)
    assert (about["step"], about["ensemble"]) == (12, [{"run": str(second), "step": 12}])


@pytest.mark.parametrize("others", [(), ("mean",), ("mean", "mean")])
def test_resume_requires_the_same_ensemble(
    others: tuple[str, ...], tiny_run: Path, second: Path, tmt: Tmt, pairs_here: list[object]
) -> None:
    """A partial output of one ensemble is not continued by another."""
    job = ("translate", tiny_run, "--input", "f", "--output", "out")
    Path("f").write_bytes(b"one two\n" * 1500 + b"na\xefve\n")
    done = tmt(*job, "--ensemble", second)
    assert (done.returncode, Path("out").exists()) == (2, False)
    assert "out.part contains 1,500 finished lines" in done.stderr
    Path("f").write_bytes(b"one two\n" * 1500 + b"three\n")
    runs = {"tiny": tiny_run, "mean": second}
    done = tmt(*job, "--resume", *(word for name in others for word in ("--ensemble", runs[name])))
    if others == ("mean",):
        assert (done.returncode, Path("out").read_bytes().count(b"\n")) == (0, 1501)
    else:
        assert done.returncode == 2
        assert "out.part: was started with other settings: run tiny, mean (now tiny" in done.stderr


def changed(run: Path, folder: Path, file: str, old: str, new: str) -> Path:
    """Copy a run and replace text in one of its files."""
    shutil.copytree(run, folder)
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    return folder


def test_incompatible_runs_are_refused(tiny_run: Path, tmt: Tmt, tmp_path: Path) -> None:
    other = changed(tiny_run, tmp_path / "bos", "tokenizer.json", '"source_bos": false', '"source_bos": true')
    with pytest.raises(UserError, match=r"bos has another tokenizer.*source_bos"):
        load_plain(tiny_run, ensemble=[other])
    other = shutil.copytree(tiny_run, tmp_path / "ids")
    content = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = content["src"]["model"]["vocab"]
    *_, one, two = vocab
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (other / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"ids has another tokenizer.*; retrain it with") as caught:
        load_plain(tiny_run, ensemble=[other])
    *_, remedy = shlex.split(str(caught.value))
    tokenizer = configuration.load(tiny_run / "config.yaml", [remedy]).tokenizer
    assert tokenizer.file == str(tiny_run / "tokenizer.json"), "the file replaces the settings that it contains"
    turned = changed(tiny_run, tmp_path / "turned", "config.yaml", "tgt_lang: de", "tgt_lang: fr")
    done = tmt("translate", tiny_run, "one", "--ensemble", tiny_run, "--ensemble", turned)
    assert (done.returncode, done.stdout) == (2, "")
    assert "turned translates en to fr, and " in done.stderr
    done = tmt("translate", tiny_run, "one", "--ensemble", tmp_path / "missing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing" in done.stderr


def test_runs_with_other_tags_are_refused(tiny_run: Path) -> None:
    untagged, _ = load_model(RunFolder.open(tiny_run), "best")
    tagged = untagged._replace(tokenizers=untagged.tokenizers.with_tags(("x",), is_needed=True))
    with pytest.raises(UserError, match=r"tags.* data\.train"):
        check_compatible(untagged, tagged)


def test_misplaced_ensemble_option_is_refused(tiny_run: Path, second: Path, tmt: Tmt, pairs_here: list[object]) -> None:
    done = tmt("evaluate", "g", "--ref", "g", "--ensemble", tiny_run)
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave out --ensemble" in done.stderr
    done = tmt("translate", tiny_run, "--ensemble", second, tiny_run)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a folder, but was read as a text" in done.stderr
    assert (
        tmt("translate", tiny_run, "--ensemble", second, "one two " * 1000).returncode == 0
    )  # too long for a file name


def test_provenance_has_the_smallest_max_length(tiny_run: Path, tmp_path: Path) -> None:
    short = changed(tiny_run, tmp_path / "short", "config.yaml", "max_length: 256", "max_length: 9")
    for runs in ((tiny_run, short), (short, tiny_run)):
        assert load_plain(runs[0], ensemble=runs[1]).provenance().max_length == 9
