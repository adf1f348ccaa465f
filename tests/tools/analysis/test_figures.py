"""The axes of figures contain the given data, and any text can be drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from helpers import Tmt, load_plain
from matplotlib import rc_context
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transformer_mt import Translator
from transformer_mt.choices import AttentionKind
from transformer_mt.model.model_config import ModelConfig
from transformer_mt.tools.analysis import figures
from transformer_mt.tools.analysis.figures import AttentionMaps, decode_tokens, translate_with_attention
from transformer_mt.training.training_config import ScheduleConfig, make_schedule

KINDS = ("inverse_sqrt", "noam", "cosine", "linear", "wsd", "constant")


def image(axes: Any) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def labels(ticks: Any) -> list[str]:
    return [tick.get_text() for tick in ticks]


def test_rotary_dot_products_depend_only_on_the_distance() -> None:
    config = ModelConfig(d_model=32, n_heads=4, positions="rotary")
    whole, products = figures.plot_positions(config, None).axes[:2]
    assert image(whole).shape == (figures.MAX_POSITIONS, 8)
    angles = 10_000.0 ** (-np.arange(4) / 4)
    for distance in (0, 1, 5, 30):
        expected = np.cos(distance * angles).sum()
        assert np.allclose(np.diagonal(image(products), distance), expected, atol=1e-4)


def test_learned_positions_are_those_of_the_model(make_model: Any) -> None:
    model = make_model(positions="learned", max_positions=9)
    axes = figures.plot_positions(model.config, model).axes[0]
    assert np.array_equal(image(axes), model.encoder.embedding.positions.table.detach().numpy())


def test_schedule_figure_contrasts_the_chosen_schedule_with_the_others() -> None:
    config = ScheduleConfig.model_validate({"kind": "cosine", "warmup_steps": 30, "peak": 2e-3})
    axes = figures.plot_schedule(config, 64, 3000).axes[0]
    curves = {str(line.get_label()).split()[0]: line for line in axes.lines if len(np.asarray(line.get_xdata())) > 2}
    assert set(curves) == set(KINDS)
    for kind, curve in curves.items():
        rate = make_schedule(config.model_copy(update={"kind": kind}).with_end(3000), 64)
        steps = [int(step) for step in np.asarray(curve.get_xdata())]
        assert (steps[0], steps[-1]) == (1, 3000)
        assert 30 in steps  # so that the peak is drawn exactly
        assert list(np.asarray(curve.get_ydata())) == [rate(step) for step in steps]
        assert kind == "cosine" or curve.get_linewidth() < curves["cosine"].get_linewidth()
    assert len({(line.get_linestyle(), line.get_color()) for line in curves.values()}) == len(curves)
    assert [text.get_text() for text in axes.texts] == ["warm-up ends at step 30"]
    assert axes.get_ylim()[1] >= max(np.asarray(curves["cosine"].get_ydata()))


def attention(n_layers: int, n_heads: int, n_queries: int, n_keys: int) -> list[np.ndarray]:
    weights = np.random.default_rng(0).gamma(0.3, size=(n_layers, n_heads, n_queries, n_keys))
    return list(weights / weights.sum(-1, keepdims=True))


def draw_attention(weights: list[np.ndarray], queries: list[str], keys: list[str]) -> Figure:
    panels = [[f"layer {i}, head {j}" for j in range(len(weights[0]))] for i in range(len(weights))]
    return figures.draw_attention("cross", weights, queries, keys, panels)


def test_attention_figure_has_a_panel_per_layer_and_head() -> None:
    weights = attention(2, 3, 4, 5)
    queries, keys = ["Der", " Hund", "$x$ $", "</s>"], ["The", " dog", " is", " 5 $", "</s>"]
    figure = draw_attention(weights, queries, keys)
    for n, axes in enumerate(figure.axes[:6]):
        row, column = divmod(n, 3)
        assert np.array_equal(image(axes), weights[row][column])
        assert axes.get_title() == f"layer {row}, head {column}"
        shown_queries, shown_keys = labels(axes.get_yticklabels()), labels(axes.get_xticklabels())
        assert shown_queries == (["Der", "▁Hund", "$x$▁$", "</s>"] if column == 0 else [""] * 4)
        assert shown_keys == (["The", "▁dog", "▁is", "▁5▁$", "</s>"] if row == 1 else [""] * 5)
    figures.render_pixels(figure)  # dollar signs start no formula; a warning would fail the test


def test_the_users_matplotlib_settings_are_ignored() -> None:
    """With `usetex`, matplotlib would need LaTeX, and LaTeX would interpret the text."""

    def draw() -> np.ndarray:
        return figures.render_pixels(draw_attention(attention(1, 1, 1, 1), ["100 % of a_table"], ["x"]))

    expected = draw()
    assert (expected.ndim, expected.shape[2], expected.dtype) == (3, 3, np.uint8)
    assert expected.min() < 64 and expected.max() == 255
    with rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        assert np.array_equal(draw(), expected)


def test_any_text_is_drawn_without_a_warning() -> None:
    """matplotlib warns of characters that no font has, and a warning would fail the test."""
    texts = [
        *["Größe", "žluťoučký", "кошка", "ελληνικά", "私は犬", "한국어", "हिन्दी", "ไทย", "كتاب", "😀", "\U000f0000"],
        "\t\u202e\u0301\n",
        "",
    ]
    figures.render_pixels(draw_attention(attention(1, 1, len(texts), 1), texts, ["x"]))


# --- attention of a translated sentence -------------------------------------------------------------------------------


@pytest.fixture
def translator(tiny_run: Path) -> Translator:
    return load_plain(tiny_run)


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


def test_one_head_of_each_kind_of_attention_can_be_drawn(maps: AttentionMaps) -> None:
    kinds: tuple[AttentionKind, ...] = get_args(AttentionKind)
    for kind in kinds:
        figure = maps.figure(kind, layer=1, head=2)
        assert [axes.get_title() for axes in figure.axes[:-1]] == ["layer 1, head 2"]
        assert np.array_equal(image(figure.axes[0]), getattr(maps.weights, kind)[0][0, 1].numpy())


def test_figures_do_not_change_the_model_or_the_random_state(translator: Translator) -> None:
    before = torch.get_rng_state()
    figures.plot_positions(ModelConfig(d_model=32), None)
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


@pytest.mark.usefixtures("in_tiny", "with_figures")
def test_tensorboard_shows_the_images_up_to_the_last_step(tmt: Tmt, tmp_path: Path) -> None:
    command = ("train", "--config", "tiny.yaml", f"runs_dir={tmp_path}", "train.max_steps=8")
    assert tmt(*command).returncode == 0
    expected = {"plots/schedule": [1], "plots/positions": [1], "plots/attention": [4, 8]}
    assert images(tmp_path / "tiny") == expected
    assert tmt(*command, "--checkpoint", "4").returncode == 0
    assert images(tmp_path / "tiny") == expected
