"""What is drawn is what was given: read back from the axes; and text is drawn in fonts that cover it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont
from matplotlib import font_manager, rc_context
from matplotlib.figure import Figure

from transformer_mt.data.corpus import DataConfig
from transformer_mt.errors import UserError
from transformer_mt.model.config import ModelConfig
from transformer_mt.pipeline import figures as pictures
from transformer_mt.plotting import figures, fonts
from transformer_mt.plotting.fonts import MissingGlyphs, letter
from transformer_mt.training.schedule import ScheduleConfig, make_schedule

KINDS = ("inverse_sqrt", "noam", "cosine", "linear", "wsd", "constant")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """No test knows the choices and warnings of another."""
    fonts._families.cache_clear()
    fonts._said.clear()
    yield
    fonts._families.cache_clear()


def image(axes: Any) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def labels(ticks: Any) -> list[str]:
    return [tick.get_text() for tick in ticks]


# --- the pictures -----------------------------------------------------------------------------------------------------


def test_positions() -> None:
    table = np.random.default_rng(0).normal(size=(7, 16)).astype(np.float32)
    figure = figures.positions_figure(table, "a table")
    whole, lines, products = figure.axes[:3]
    assert np.array_equal(image(whole), table)
    assert np.allclose(image(products), table @ table.T)
    for line in lines.lines:
        dimension = int(str(line.get_label()).removeprefix("dimension "))
        assert np.array_equal(line.get_ydata(), table[:, dimension])
    assert len({line.get_linestyle() for line in lines.lines}) == len(lines.lines) == 4
    assert (whole.get_xlabel(), whole.get_ylabel(), lines.get_xlabel()) == ("dimension", "position", "position")
    assert [axes.get_ylabel() for axes in figure.axes[3:]] == ["value", "dot product"]


def test_a_product_of_rotary_positions_depends_on_the_distance_alone() -> None:
    config = ModelConfig(d_model=32, n_heads=4, positions="rotary")
    whole, _, products = pictures.positions(config, None).axes[:3]
    assert image(whole).shape == (pictures.POSITIONS, 8)
    angles = 10_000.0 ** (-np.arange(4) / 4)
    for distance in (0, 1, 5, 30):
        expected = np.cos(distance * angles).sum()
        assert np.allclose(np.diagonal(image(products), distance), expected, atol=1e-4)


def test_learned_positions_are_the_models(make_model: Any) -> None:
    model = make_model(positions="learned", max_positions=9)
    axes = pictures.positions(model.config, model).axes[0]
    assert np.array_equal(image(axes), model.encoder.embedding.positions.table.detach().numpy())
    with pytest.raises(UserError, match=r"model\.positions is learned: .*name a run"):
        pictures.positions(model.config, None)
    with pytest.raises(UserError, match=r"model\.positions is none"):
        pictures.positions(ModelConfig(positions="none"), None)


def test_drawing_leaves_the_random_state(make_model: Any) -> None:
    import torch

    before = torch.get_rng_state()
    figures.pixels(pictures.positions(ModelConfig(d_model=32), None))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_schedule(kind: str) -> None:
    config = ScheduleConfig.model_validate({"kind": kind, "warmup_steps": 30, "peak": 2e-3})
    axes = pictures.schedule(config, 64, 3000).axes[0]
    rate = make_schedule(config.ending(3000), 64)
    curves = {str(line.get_label()).split()[0]: line for line in axes.lines if len(np.asarray(line.get_xdata())) > 2}
    assert set(curves) == set(KINDS)
    steps = [int(step) for step in np.asarray(curves[kind].get_xdata())]
    assert (steps[0], steps[-1]) == (1, 3000)
    assert 30 in steps  # the peak is no point between two others
    assert list(np.asarray(curves[kind].get_ydata())) == [rate(step) for step in steps]
    assert all(line.get_linewidth() < curves[kind].get_linewidth() for name, line in curves.items() if name != kind)
    assert len({(line.get_linestyle(), line.get_color()) for line in curves.values()}) == len(curves)
    assert [text.get_text() for text in axes.texts] == ["warm-up ends at step 30"]
    assert axes.get_ylim()[1] >= max(np.asarray(curves[kind].get_ydata()))


@pytest.mark.parametrize(
    ("settings", "max_steps", "end"),
    [({}, None, 5000), ({"kind": "cosine", "total_steps": 700}, None, 700), ({"total_steps": 700}, 900, 900)],
    ids=["past its warm-up", "to the end of its curve", "to the last step"],
)
def test_how_far_a_schedule_is_drawn(settings: dict[str, Any], max_steps: int | None, end: int) -> None:
    config = ScheduleConfig.model_validate({"warmup_steps": 500, **settings})
    assert pictures.schedule(config, 64, max_steps).axes[0].get_xlim() == (0, end)


def test_a_run_that_is_shorter_than_the_warm_up_is_drawn() -> None:
    axes = pictures.schedule(ScheduleConfig(warmup_steps=500), 64, 100).axes[0]
    assert not axes.texts


def attention(n_layers: int, n_heads: int, n_queries: int, n_keys: int) -> list[np.ndarray]:
    weights = np.random.default_rng(0).gamma(0.3, size=(n_layers, n_heads, n_queries, n_keys))
    return list(weights / weights.sum(-1, keepdims=True))


def attention_figure(weights: list[np.ndarray], queries: list[str], keys: list[str]) -> Figure:
    panels = [[f"layer {i}, head {j}" for j in range(len(weights[0]))] for i in range(len(weights))]
    return figures.attention_figure("cross", weights, queries, keys, panels)


def test_attention() -> None:
    weights = attention(2, 3, 4, 5)
    queries, keys = ["Der", " Hund", "$x$ $", "</s>"], ["The", " dog", " is", " 5 $", "</s>"]
    figure = attention_figure(weights, queries, keys)
    for n, axes in enumerate(figure.axes[:6]):
        row, column = divmod(n, 3)
        assert np.array_equal(image(axes), weights[row][column])
        assert axes.get_title() == f"layer {row}, head {column}"
        shown_queries, shown_keys = labels(axes.get_yticklabels()), labels(axes.get_xticklabels())
        assert shown_queries == (["Der", "▁Hund", "$x$▁$", "</s>"] if column == 0 else [""] * 4)
        assert shown_keys == (["The", "▁dog", "▁is", "▁5▁$", "</s>"] if row == 1 else [""] * 5)
    figures.pixels(figure)  # dollars are no formula, no glyph is missing: any warning is an error here


def test_a_picture_grows_with_the_sentence_and_has_an_end() -> None:
    sizes: list[float] = []
    for n in (5, 20, 40, 300):
        figure = attention_figure(attention(1, 4, n, n), ["ab"] * n, ["ab"] * n)
        sizes.append(figure.get_size_inches().max())
        assert len(figure.axes[0].get_xticks()) == len(figure.axes[0].get_xticklabels()) >= min(n, 40)
    assert sizes == sorted(sizes)
    assert sizes[-1] * figures.DPI < 2**13


def test_lengths() -> None:
    src, tgt = np.array([3, 4, 4, 5, 90, 700]), np.array([1, 2, 8, 8, 8, 101])
    figure = figures.lengths_figure(src, tgt, ("en", "é $x$"), 100, "six pairs")
    for axes, side in zip(figure.axes, (src, tgt), strict=True):
        bars = [patch for patch in axes.patches if patch.get_height() > 0]  # pyright: ignore[reportAttributeAccessIssue]
        assert sum(bar.get_height() for bar in bars) == len(side)  # pyright: ignore[reportAttributeAccessIssue]
        assert axes.lines[0].get_xdata()[0] == 100.5  # pyright: ignore[reportIndexIssue]
        low, high = axes.get_ylim()
        assert low < 1 < max(bar.get_height() for bar in bars) < high  # pyright: ignore[reportAttributeAccessIssue]
    assert "longest 700" in figure.axes[0].get_title()
    assert figure.axes[1].get_xlabel() == "length in tokens, the end symbol included (last bar: 197 and more)"


def test_a_limit_beyond_the_picture_is_named() -> None:
    short = np.array([3, 4, 4])
    figure = figures.lengths_figure(short, short, ("en", "de"), 100, "short")
    assert all(not axes.lines and axes.texts[0].get_text() == "data.max_length 100 →" for axes in figure.axes)
    heights = [patch.get_height() for patch in figure.axes[0].patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert heights == [0, 0, 1, 2]  # a bar for each length from 1 on


def test_pairs_beyond_the_limit_are_counted(make_corpus: Any) -> None:
    corpus = make_corpus([[5], [5, 5, 5], [5, 5]], [[5, 5, 5, 5], [5], [5]])
    source: Any = {"src": "a", "tgt": "b"}
    data = DataConfig(src_lang="en", tgt_lang="de", train=source, max_length=4)
    assert pictures.lengths(corpus, data).get_suptitle() == "3 training pairs; 1 beyond data.max_length"
    corpus.filtered.too_long = 2
    title = "3 training pairs; 3 beyond data.max_length, 2 of them left out here"
    assert pictures.lengths(corpus, data).get_suptitle() == title


def test_a_users_own_settings_of_matplotlib_play_no_part() -> None:
    """LaTeX is not installed everywhere, and would read signs of the text."""
    expected = figures.pixels(figures.positions_figure(np.eye(8), "100 % of a_table"))
    with rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        found = figures.pixels(figures.positions_figure(np.eye(8), "100 % of a_table"))
    assert np.array_equal(found, expected)


def test_pixels() -> None:
    shown = figures.pixels(figures.lengths_figure(np.ones(1), np.ones(1), ("en", "de"), 9, "one"))
    assert (shown.ndim, shown.shape[2], shown.dtype) == (3, 3, np.uint8)
    assert shown.min() < 64
    assert shown.max() == 255


# --- the letters ------------------------------------------------------------------------------------------------------


def covered(families: list[str]) -> set[str]:
    """The characters of fonts, as another library reads them."""
    found: set[str] = set()
    for family in families:
        path = font_manager.findfont(family, fallback_to_default=False)
        found.update(map(chr, TTFont(path, fontNumber=0).getBestCmap() or ()))
    return found


TEXTS = [
    " Größe",
    "žluťoučký",
    "ελληνικά",
    "кошка",
    "كتاب",
    "私は犬",
    "我们",
    "한국어",
    "हिन्दी",
    "ไทย",
    "😀",
    "\U000f0000",
]


@pytest.mark.parametrize("text", TEXTS)
def test_fonts_cover_what_they_claim(text: str) -> None:
    """Whatever fonts there are: what is left as it was is covered, and nothing is drawn as a box."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGlyphs)
        lettering = letter([text])
        figure = attention_figure(attention(1, 1, 1, 1), [text], [text])
    assert set("".join(lettering.texts)) <= covered(lettering.families)
    figures.pixels(figure)  # matplotlib would warn of a missing glyph


def test_latin_needs_no_other_font() -> None:
    assert letter(["Größe", "ş"]) == (["Größe", "ş"], ["DejaVu Sans"])


def test_a_character_without_a_font_becomes_its_code_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_installed", list[str])
    with pytest.warns(MissingGlyphs, match=r"CJK, HIRAGANA; .*apt install fonts-noto-cjk") as caught:
        assert letter(["犬は", "a"]).texts == ["<72AC><306F>", "a"]
    assert len(caught) == 1
    letter(["猫が"])  # said already
    with pytest.warns(MissingGlyphs, match=r"THAI; .*apt install fonts-noto-core"):
        letter(["ไทย"])


def test_a_font_that_is_newer_than_matplotlibs_list_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "dog"])
    builder.setupCharacterMap({ord("犬"): "dog"})
    builder.setupGlyf({name: TTGlyphPen(None).glyph() for name in (".notdef", "dog")})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "dog": (500, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Brand New", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "new.ttf")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "new.ttf")])
    own = [entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    assert letter(["犬"]) == (["犬"], ["DejaVu Sans", "Brand New"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a b", "▁a▁b"),
        ("\u0301", "◌\u0301"),
        ("\t", "<0009>"),
        ("\u202eabc", "<202E>abc"),
        ("\u200d", "<200D>"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("a" * 30, "a" * 19 + "…"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_shown(text: str, shown: str) -> None:
    assert letter([text]).texts == [shown]
