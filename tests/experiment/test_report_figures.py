"""What the figures draw: the numbers of the rows, a method always in its colour, names that stay in their column."""

import numpy as np
import pytest

from rope_jax.experiment.report.curves import by_octave, loss_by_position
from rope_jax.experiment.report.labels import COLUMN, spread_out, wrapped
from rope_jax.experiment.report.maps import depth_grid, turns
from rope_jax.experiment.report.series import gather
from rope_jax.experiment.report.strokes import family, strokes
from rope_jax.experiment.report.style import LIGHT, SMALL, length_axis, mark_lengths, new_figure
from tests.experiment.report_rows import passkey_rows, text_rows

LONG = "BaseChange(theta=50000) + AttentionTemperature(scale=1.05)"


def test_figures_draw_the_numbers_of_the_rows():
    middles, losses = by_octave([4.0, 3.0, 2.0, 1.0, 9.0], 64)
    assert (middles.tolist(), losses.tolist()) == ([8.0, 24.0, 48.0, 72.0], [4.0, 3.0, 1.5, 9.0])
    assert turns({"inv_freq": [2 * np.pi, 0.0]}, 64)[0] == pytest.approx(64.0)
    assert np.isnan(turns({"inv_freq": [2 * np.pi, 0.0]}, 64)[1])
    (keys, *_) = gather(passkey_rows(seeds=(0, 1)), "passkey_accuracy")
    depths, shares = depth_grid(keys, [64, 128])
    assert (len(depths), shares.shape) == (8, (8, 2))
    assert shares[0, 0] == pytest.approx(np.mean([row["by_depth"][0][1] for row in keys.cells[0].rows]))


def test_a_curve_looks_the_same_however_often_it_is_named_and_like_no_other():
    curves = [("Identity()", None), *((f"M{number}()", None) for number in range(12))]
    once, twice = (strokes(named, curves[:1], LIGHT) for named in (curves, [*curves, *curves]))
    assert once == twice
    assert len(set(once.values())) == len(curves)


def test_a_method_keeps_its_colour_in_any_order_and_gives_it_to_its_chains():
    curves = [("YaRN()", None), ("NTKAware()", None), ("chain(YaRN(), Resonance())", None), ("YaRN()", 4.0)]
    some, other = strokes(curves, (), LIGHT), strokes(curves[::-1], (), LIGHT)
    assert some == other
    assert len({some[curve].colour for curve in curves}) == 2
    assert some[curves[0]].colour == strokes(curves[:1], (), LIGHT)[curves[0]].colour
    assert family("chain(NTKAware(factor=2), Resonance())") == family("NTKAware()") != family("YaRN()")


def test_labels_keep_their_distance_and_their_order():
    placed = spread_out(np.array([0.1, 0.11, 0.12, 0.9]), np.array([0.1, 0.1, 0.2, 0.1]))
    assert np.all(np.diff(placed)[:2] >= np.array([0.1, 0.15]) - 1e-12)
    assert placed[:3].mean() == pytest.approx(0.11)
    assert placed[3] == pytest.approx(0.9)


def test_labels_stay_between_bottom_and_top():
    crowded = np.full(5, 0.1)
    assert spread_out(np.ones(5), crowded, 0.0, 1.0) == pytest.approx([0.55, 0.65, 0.75, 0.85, 0.95])
    assert spread_out(np.zeros(5), crowded, 0.0, 1.0) == pytest.approx([0.05, 0.15, 0.25, 0.35, 0.45])
    assert spread_out(np.array([]), np.array([]), 0.0, 1.0).size == 0


def test_a_long_name_is_wrapped_and_elided():
    assert wrapped("YaRN + Resonance", 200.0) == ["YaRN + Resonance"]
    assert wrapped("PositionInterpolation, matched", 130.0) == ["PositionInterpolation,", "matched"]
    first, second = wrapped(LONG, 100.0)
    assert first.startswith("BaseChange(") and first.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert second.startswith("+ Attention") and second.endswith("\N{HORIZONTAL ELLIPSIS}")


def test_a_long_name_leaves_the_plot_its_width():
    rows = [row | {"label": LONG} if row["label"] == "YaRN" else row for row in text_rows(tuned=False)]
    series = gather(rows, "loss")
    styles = strokes([one.curve for one in series], (), LIGHT)
    figure = loss_by_position(series, gather(rows, "truncated_loss"), styles, LIGHT, "heading")
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_position().width > 0.5
    names = [text for text in axes.texts if text.get_text() and text.get_position()[0] > 1]
    assert len(names) == 1 + len(series)
    assert {text.get_fontsize() for text in names} == {SMALL}
    right = [text.get_window_extent().x1 for text in names]
    assert max(right) <= figure.bbox.width < max(right) + COLUMN * figure.bbox.width


def test_the_names_of_marked_lengths_keep_apart():
    figure, ((axes,),) = new_figure(LIGHT, size=(4.4, 4.4))
    axes.plot([8.0, 480.0], [0.0, 1.0])
    length_axis(axes, [16.0, 512.0], 64)
    mark_lengths(axes, [(64, "trained on"), (256, "tuned on")], LIGHT)
    figure.canvas.draw()
    trained, tuned = (text.get_window_extent() for text in axes.texts)
    assert trained.x1 < tuned.x0


def test_tick_labels_that_would_touch_are_left_out():
    _, ((axes,),) = new_figure(LIGHT)
    lengths = [16.0 * 2**k for k in range(12)]
    axes.plot(lengths, lengths)
    length_axis(axes, lengths, 64)
    labels = [label.get_text().split("\n") for label in axes.get_xticklabels()]
    assert [tokens for tokens, _ in labels][-1] == "" or [tokens for tokens, _ in labels][-2] == ""
    assert [times for _, times in labels][:2] == ["0.25×", ""]
