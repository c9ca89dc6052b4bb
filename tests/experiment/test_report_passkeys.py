"""Whether the key is still found: classes, intervals of accuracies, and on how many keys the answer rests."""

import pytest

from rope_jax.experiment.intervals import wilson
from rope_jax.experiment.report.key_headline import key_headline
from rope_jax.experiment.report.passkeys import change_of, classify, interval, not_told_apart, remark
from rope_jax.experiment.report.series import Cell, gather
from rope_jax.experiment.report.tables import accuracy
from tests.experiment.report_rows import passkey_rows

SPACE = "\N{NO-BREAK SPACE}"


def cell(*values, keys=100):
    return Cell(64, tuple({"value": value, "keys": keys, "seed": seed} for seed, value in enumerate(values)))


def series(values, keys, methods=("A",)):
    """Rows of one method at 1x and 4x, or of several with the values of each."""
    first, rows = next(row for row in passkey_rows() if row["metric"] == "passkey_accuracy"), []
    for method, (near, far) in zip(methods, values, strict=True):
        for length, value in ((64, near), (256, far)):
            fields = {"method": f"{method}()", "label": method, "length": length, "value": value, "keys": keys}
            rows.append(first | fields)
    return gather(rows, "passkey_accuracy")


def test_keys_are_classed_against_chance_and_the_trained_length():
    assert classify(cell(0.96), cell(0.99), 1 / 32) == "keeps finding it"
    assert classify(cell(0.90), cell(0.99), 1 / 32) == "loses some"
    assert classify(cell(0.94), cell(0.99), 1 / 32) == "undecided"
    assert classify(cell(0.06), cell(0.99), 1 / 32) == "guesses"
    assert classify(cell(0.50), cell(0.06), 1 / 32) == "never learned it"
    assert classify(None, cell(0.99), 1 / 32) == "unknown"
    assert classify(cell(0.96), cell(0.99), None) == "keeps finding it"


@pytest.mark.parametrize("found", [0.0, 1 / 3, 2 / 3, 1.0])
@pytest.mark.parametrize("trained", [0.0, 1 / 3, 2 / 3, 1.0])
def test_three_keys_decide_nothing(found, trained):
    assert classify(cell(found, keys=3), cell(trained, keys=3), 0.1) == "undecided"


def test_an_accuracy_has_wilsons_interval_or_the_wider_one_of_its_seeds():
    assert interval(cell(2 / 3, keys=3)) == wilson(2 / 3, 3)
    # Seeds that agree: the keys of both. Seeds that do not: 0.5 -+ 4.303 x 0.1 / sqrt(3).
    assert interval(cell(0.5, 0.5)) == wilson(0.5, 200)
    assert interval(cell(0.4, 0.5, 0.6)) == pytest.approx((0.5 - 0.2484137, 0.5 + 0.2484137))
    assert interval(cell(0.99, 0.8, 0.9)).high == 1.0


def test_seeds_are_compared_one_by_one():
    here, trained = cell(0.4, 0.5, 0.6), cell(0.7, 0.8, 0.9)
    middle, half = -0.3, change_of(here, trained).high + 0.3
    assert 0.05 < half < 0.09  # of 300 keys each; the seeds differ by 0.3 all, though each length spreads by 0.1
    assert change_of(here, cell(0.7, 0.8, 0.6)).high == pytest.approx(-0.2 + 4.3026527 * 0.1)
    assert change_of(here, trained).low < middle


def test_the_answer_names_the_keys_and_the_interval():
    short, sentence = key_headline(series([(1.0, 2 / 3)], 3), 256, 0.1)
    assert short == "Undecided"
    assert "these keys are too few to tell whether as often as at the trained length" in sentence
    assert f"66.7{SPACE}% of the key's symbols (95{SPACE}% interval 20.8 to 93.9{SPACE}%, 3 keys)" in sentence
    assert sentence.endswith(f"and guessing would find 10.0{SPACE}%.")


@pytest.mark.parametrize(
    ("values", "keys", "short", "clause"),
    [
        ([(0.99, 0.98), (0.99, 0.4)], 128, "Yes, it still finds the key", "under A as often as"),
        ([(0.99, 0.60), (0.99, 0.4)], 128, "In part", "under every method less often than"),
        ([(0.99, 0.60), (0.99, 0.0)], 128, "In part", "under every method less often than"),
        ([(0.99, 0.03), (0.99, 0.0)], 128, "No", "under no method more often than by chance"),
        ([(0.99, 0.0), (0.99, 0.0)], 3, "Undecided", "too few to tell finding from guessing"),
        ([(0.03, 0.0), (0.02, 0.0)], 128, "Not answered", f"it finds 3.0{SPACE}% of the key's symbols"),
        ([(0.0, 0.0), (0.0, 0.0)], 3, "Undecided", "too few to tell finding from guessing"),
    ],
)
def test_the_answer_follows_the_classes(values, keys, short, clause):
    said, sentence = key_headline(series(values, keys, ("A", "B")), 256, 1 / 32)
    assert said == short
    assert clause in sentence


def test_one_method_that_holds_beside_one_that_does_not_tell():
    said, sentence = key_headline(series([(0.99, 0.80), (0.82, 0.79)], 128, ("A", "B")), 256, 1 / 32)
    assert said == "In part"
    assert "under the best method less often than at the trained length" in sentence


def test_methods_that_find_the_key_about_as_often_are_not_told_apart():
    group = series([(1.0, 0.95), (1.0, 0.93), (1.0, 0.5)], 128, ("A", "B", "C"))
    assert not_told_apart(group, 256) == ["B"]
    assert remark(group, 256) == (
        f"In brackets the 95{SPACE}% interval, from 128 keys. Not told apart from A, which finds most: B. "
        "The best is favoured by chance."
    )
    assert "Not told apart" not in remark(series([(1.0, 0.95), (1.0, 0.5)], 128, ("A", "B")), 256)


def test_the_table_states_interval_and_keys_beside_each_accuracy():
    entry = accuracy(cell(2 / 3, keys=3))
    assert (entry.text, entry.small) == ("66.7", f"20.8{SPACE}to{SPACE}93.9; 3{SPACE}keys")
