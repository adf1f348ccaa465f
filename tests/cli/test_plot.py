"""`tmt plot`: image files, the values that they show, and wrong arguments."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Tmt, assert_user_error
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_mt import Translator
from transformer_mt.cli import plot
from transformer_mt.cli.options import load_run_or_config
from transformer_mt.config import root as configuration
from transformer_mt.tools.analysis import figures
from transformer_mt.tools.analysis.figures import AttentionMaps, decode_tokens, translate_with_attention

KINDS = ("positions", "schedule", "attention", "lengths")


@pytest.fixture
def translator(tiny_run: Path) -> Translator:
    return Translator.load(tiny_run)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", KINDS)
def test_each_kind_of_image_is_drawn_for_a_run(
    what: str, tiny_run: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path
) -> None:
    done = tmt("plot", what, tiny_run, "--output", tmp_path / "f.png")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/f.png\n"), done.stderr
    with Image.open(tmp_path / "f.png") as picture:
        assert picture.format == "PNG"
        assert 300 < min(picture.size) <= max(picture.size) < 3000
        assert len(np.unique(np.asarray(picture))) > 9  # the image is not blank
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]
    assert not (tiny_run / "plots").exists()


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")])
def test_the_suffix_sets_the_image_format(suffix: str, start: bytes, in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    path = tmp_path / f"f.{suffix}"
    assert tmt("plot", "schedule", "tiny.yaml", "--output", path, "schedule.kind=noam").returncode == 0
    assert path.read_bytes().startswith(start)


def test_a_link_keeps_pointing_to_the_image(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(tmp_path / "there.png")
    assert tmt("plot", "schedule", "tiny.yaml", "--output", tmp_path / "link.png").returncode == 0
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "there.png").is_file()


@pytest.mark.slow
def test_the_default_output_is_in_the_run_unless_overrides_are_given(
    tiny_run: Path, tiny: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    run = tiny_run.relative_to(tiny)
    for _ in range(2):  # a second image replaces the first
        assert tmt("plot", "schedule", run).stdout == f"{run}/plots/schedule.png\n"
    assert [path.name for path in (run / "plots").iterdir()] == ["schedule.png"]
    assert tmt("plot", "lengths", "tiny.yaml", "name=other").stdout == "other-lengths.png\n"
    assert Path("other-lengths.png").exists()
    drawn = (run / "plots" / "schedule.png").read_bytes()
    other = tmt("plot", "schedule", run, "schedule.peak=0.5").stdout.strip()
    assert (run / "plots" / "schedule.png").read_bytes() == drawn, "the image of the run is kept"
    assert Path(other).name == other and other.endswith("-schedule.png") and Path(other).exists()
    assert not Path("runs/other").exists()


# --- values in the images ---------------------------------------------------------------------------------------------


def test_a_configuration_and_its_run_have_the_same_lengths(tiny_run: Path, in_tiny: Path) -> None:
    titles, counts = set[str](), set[float]()
    for path in (tiny_run, Path("tiny.yaml")):
        figure = plot.draw_lengths(*load_run_or_config(path, []))
        for axes in figure.axes:
            counts.add(sum(bar.get_height() for bar in axes.patches))  # pyright: ignore[reportAttributeAccessIssue]
        titles.add(figure.get_suptitle())
    assert counts == {50}
    assert titles == {"50 training pairs; 0 beyond data.max_length"}


def test_lengths_include_pairs_beyond_the_limit(in_tiny: Path) -> None:
    figure = plot.draw_lengths(*load_run_or_config(Path("tiny.yaml"), ["data.max_length=3"]))
    beyond = int(figure.get_suptitle().split("; ")[1].split()[0])
    assert 0 < beyond <= 50
    assert max(int(axes.get_title().rpartition(" ")[2]) for axes in figure.axes) > 3


def test_overrides_change_the_schedule(in_tiny: Path) -> None:
    config = configuration.load(Path("tiny.yaml"), ["schedule.kind=noam", "train.max_steps=77"])
    axes = figures.plot_schedule(config.schedule, config.model.d_model, config.train.max_steps).axes[0]
    assert (axes.get_title(), axes.get_xlim()[1]) == ("learning rate: noam", 77)


def test_a_schedule_without_its_own_end_ends_with_the_training(in_tiny: Path) -> None:
    """Its last step is train.max_steps by default."""
    config = configuration.load(Path("tiny.yaml"), ["schedule.kind=linear", "train.max_steps=77"])
    (chosen, *_) = figures.plot_schedule(config.schedule, config.model.d_model, config.train.max_steps).axes[0].lines
    rates = list(np.asarray(chosen.get_ydata()))
    assert (rates.index(max(rates)), rates[-1]) == (4, 0.0)


@pytest.fixture
def maps(translator: Translator) -> AttentionMaps:
    return translate_with_attention(translator, "one two three")


def test_attention_maps_belong_to_the_translation_of_the_model(translator: Translator, maps: AttentionMaps) -> None:
    assert "".join(maps.src) == "one two three</s>"
    ((hypothesis, *_),) = translator.engine.search(translator.encode(["one two three"], [1]), translator.config)
    end = [translator.tokenizers.tgt.eos_id] * hypothesis.finished
    assert maps.tgt_out == decode_tokens(translator.tokenizers.tgt, hypothesis.ids + end)
    assert maps.tgt_in == ["<s>", *decode_tokens(translator.tokenizers.tgt, (hypothesis.ids + end)[:-1])]
    n_src, n_tgt = len(maps.src), len(maps.tgt_out)
    for kind, size in {"cross": (n_tgt, n_src), "encoder": (n_src, n_src), "decoder": (n_tgt, n_tgt)}.items():
        (weights,) = getattr(maps.weights, kind)
        assert weights.shape == (1, 2, *size)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
    assert not torch.triu(maps.weights.decoder[0], 1).any()


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_the_image_shows_the_attention_weights(kind: Any, maps: AttentionMaps) -> None:
    figure = maps.figure(kind)
    (weights,) = getattr(maps.weights, kind)
    for axes, expected in zip(figure.axes[:2], weights[0], strict=True):
        drawn = np.asarray(axes.images[0].get_array())
        assert np.array_equal(drawn, expected.numpy())
        assert np.allclose(drawn.sum(-1), 1, atol=1e-5)
    alone = maps.figure(kind, layer=1, head=2)
    assert [axes.get_title() for axes in alone.axes[:-1]] == ["layer 1, head 2"]
    assert np.array_equal(np.asarray(alone.axes[0].images[0].get_array()), weights[0, 1].numpy())


def test_heads_of_one_layer_are_drawn_in_a_square(maps: AttentionMaps) -> None:
    cross = [torch.cat([layer, layer], dim=1) for layer in maps.weights.cross]
    figure = maps._replace(weights=maps.weights._replace(cross=cross)).figure("cross", layer=1)
    panels = figure.axes[:-1]
    assert [axes.get_title() for axes in panels] == [f"layer 1, head {head}" for head in (1, 2, 3, 4)]
    grids = [axes.get_subplotspec() for axes in panels]
    assert {grid.get_gridspec().get_geometry() for grid in grids if grid is not None} == {(2, 2)}


def test_attention_maps_do_not_change_the_model_or_the_random_state(translator: Translator) -> None:
    before = torch.get_rng_state()
    translate_with_attention(translator, "one").figure("cross")
    assert not any(module.training for module in translator.model.modules())
    assert torch.equal(torch.get_rng_state(), before)


def test_attention_of_a_model_with_nan_weights_is_drawn(translator: Translator) -> None:
    """A diverged training draws such attention."""
    for parameter in translator.model.parameters():
        parameter.data.fill_(np.nan)
    maps = translate_with_attention(translator, "one two")
    assert (maps.tgt_in, maps.tgt_out) == (["<s>"], ["</s>"])
    for kind in ("cross", "encoder", "decoder"):
        assert len(maps.figure(kind).axes) == 3  # two heads and the color bar


def test_token_labels_restore_the_text(translator: Translator) -> None:
    tokenizer = translator.tokenizers.src
    for text in ("one two three", "two  spaces ", "fünf</s>"):
        (ids,) = tokenizer.encode([text])
        assert "".join(decode_tokens(tokenizer, ids)) == text
    (ids,) = tokenizer.encode(["犬"])  # the vocabulary represents it by bytes
    assert re.fullmatch(r"\s*(<0x[0-9A-F]{2}>){3}", "".join(decode_tokens(tokenizer, ids)))


# --- while training ---------------------------------------------------------------------------------------------------


def images(run: Path) -> dict[str, list[int]]:
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    tags: Any = events.Tags()
    return {tag: [image.step for image in events.Images(tag)] for tag in tags["images"]}


def test_tensorboard_shows_the_images(tiny_run: Path) -> None:
    expected = {"plots/schedule": [1], "plots/lengths": [1], "plots/positions": [1], "plots/attention": [4, 8, 12]}
    assert images(tiny_run) == expected


def test_tensorboard_shows_no_images_without_probes(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    command = ("train", "--config", "tiny.yaml", f"runs_dir={tmp_path}", "validation.probes=0", "train.max_steps=4")
    assert tmt(*command).returncode == 0
    assert images(tmp_path / "tiny") == {}


@pytest.mark.slow
def test_resuming_earlier_removes_later_images(in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    command = ("train", "--config", "tiny.yaml", f"runs_dir={tmp_path}", "model.positions=none")
    assert tmt(*command, "train.max_steps=8").returncode == 0
    assert tmt(*command, "train.max_steps=8", "--checkpoint", "4").returncode == 0
    assert images(tmp_path / "tiny") == {"plots/schedule": [1], "plots/lengths": [1], "plots/attention": [4, 8]}


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no such run": (("schedule", "nowhere"), ("nowhere: no such run folder and no such YAML file",)),
    "a folder that is no run": (("schedule", "W"), ("is not a run folder",)),
    "another suffix": (("schedule", "tiny.yaml", "--output", "W/f.bmp"), ("W/f.bmp: the suffix", ".png, .svg, .pdf")),
    "no suffix": (("schedule", "tiny.yaml", "--output", "W/f"), (".png, .svg, .pdf",)),
    "no such folder": (("schedule", "tiny.yaml", "--output", "W/no/f.png"), ("there is no folder",)),
    "attention of a configuration": (
        ("attention", "tiny.yaml"),
        ("a configuration has no trained model", "pass a run"),
    ),
    "no positions": (("positions", "tiny.yaml", "model.positions=none"), ("model.positions is none",)),
    "positions not learnt": (("positions", "tiny.yaml", "model.positions=learned"), ("pass a trained run",)),
    "another model than the run's": (
        ("positions", "RUN", "model.positions=learned"),
        ("the model and tokenizers of a run cannot be changed", "leave it out"),
    ),
    "no text": (("attention", "RUN", "--text", " \t"), ("the text is empty", "--text")),
    "no such layer": (("attention", "RUN", "--layer", "2"), ("--layer 2: there are 1",)),
    "heads count from 1": (("attention", "RUN", "--head", "0"), ("--head 0: there are 2; pass one from 1 to 2",)),
    "overrides of attention": (("attention", "RUN", "model.d_model=8"), ("model.d_model=8", "leave it out")),
    "text for a schedule": (("schedule", "tiny.yaml", "--text", "one"), ("belong to attention",)),
    "no such picture": (("losses", "RUN"), ("choose from",)),
    "a word too many": (("schedule", "tiny.yaml", "--output", "W/f.png", "noam"), ("noam",)),
    "an unknown option": (
        ("schedule", "tiny.yaml", "--xyzzy=red"),
        ("unknown option --xyzzy; tmt plot --help",),
    ),
    "no such checkpoint": (("attention", "RUN", "--checkpoint", "5"), ("checkpoint 5: ",)),
    "a checkpoint of a schedule": (("schedule", "RUN", "--checkpoint", "5"), ("no weights are drawn", "leave it out")),
    "a checkpoint of a table": (("positions", "RUN", "--checkpoint", "last"), ("no weights are drawn",)),
    "a checkpoint of a configuration": (("schedule", "tiny.yaml", "--checkpoint", "best"), ("no weights are drawn",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_arguments_are_refused(mistake: str, tiny_run: Path, in_tiny: Path, tmt: Tmt, tmp_path: Path) -> None:
    arguments, messages = MISTAKES[mistake]
    given = [text.replace("RUN", str(tiny_run)).replace("W", str(tmp_path), text[0] == "W") for text in arguments]
    done = tmt("plot", *given)
    assert_user_error(done, *(part.replace("W/", f"{tmp_path}/") for part in messages))
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_missing_validation_text_is_reported_with_a_remedy(
    tiny_run: Path, tmt: Tmt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = tmt("plot", "attention", tiny_run, "--output", "f.png")
    assert_user_error(done, "without --text, the first validation sentence is used")
    assert tmt("plot", "attention", tiny_run, "--output", "f.png", "--text", "one").returncode == 0
    for language in ("en", "de"):  # the training text may be missing
        shutil.copy(tiny_run.parents[1] / f"valid.{language}", tmp_path)
    assert tmt("plot", "attention", tiny_run, "--output", "g.png").returncode == 0


def test_the_default_text_is_the_first_validation_sentence(tiny_run: Path, in_tiny: Path) -> None:
    config = configuration.load(tiny_run / "config.yaml")
    assert (
        plot.read_first_validation_sentence(config) == (in_tiny / "valid.en").read_text(encoding="utf-8").split("\n")[0]
    )
