"""Which cells of a plan can begin, which are stuck, and which one a worker is given."""

import dataclasses

import pytest

from rope_jax.experiment.executors.agenda import agenda_of
from rope_jax.experiment.plan import plan
from tests.experiment.tiny import passkey_config, text_config


@pytest.fixture(scope="module")
def agenda(tmp_path_factory):
    config = text_config(tmp_path_factory.mktemp("agenda"))
    return agenda_of(config, plan(config))


def numbers(agenda, keys):
    """Keys as places in the plan: 0 training, 1 truncated, 2 to 5 losses; 6 training, 7 truncated, 8 and 9 losses."""
    order = list(agenda.cells)
    return sorted(order.index(key) for key in keys)


def keys(agenda, *places):
    order = list(agenda.cells)
    return {order[place] for place in places}


@pytest.mark.parametrize(
    ("finished", "ready"),
    [
        ((), [0]),
        ((0,), [1, 6]),
        ((0, 1), [2, 3, 4, 5, 6]),
        ((0, 6), [1]),  # the tuned baseline is held against the plain one
        ((0, 1, 6), [2, 3, 4, 5, 7]),
        ((0, 1, 2, 3, 4, 5, 6, 7), [8, 9]),
        (range(10), []),
    ],
)
def test_a_cell_begins_when_its_weights_and_its_baseline_are_finished(agenda, finished, ready):
    assert numbers(agenda, agenda.ready(keys(agenda, *finished), set())) == ready


def test_what_is_taken_does_not_begin_again(agenda):
    assert numbers(agenda, agenda.ready(keys(agenda, 0, 1), keys(agenda, 3, 6))) == [2, 4, 5]


@pytest.mark.parametrize(
    ("failed", "stuck"),
    [
        ((), []),
        ((0,), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ((1,), [2, 3, 4, 5, 7, 8, 9]),
        ((6,), [7, 8, 9]),
        ((5, 9), []),
    ],
)
def test_what_needs_a_failed_cell_is_stuck(agenda, failed, stuck):
    assert numbers(agenda, agenda.stuck(keys(agenda, *failed))) == stuck


def test_seeds_need_nothing_of_one_another(tmp_path):
    config = dataclasses.replace(text_config(tmp_path), seeds=(0, 1))
    agenda = agenda_of(config, plan(config))
    assert numbers(agenda, agenda.ready(set(), set())) == [0, 10]
    assert numbers(agenda, agenda.stuck(keys(agenda, 10))) == list(range(11, 20))


def test_passkeys_need_their_weights_alone(tmp_path):
    config = passkey_config(tmp_path)
    agenda = agenda_of(config, plan(config))
    assert numbers(agenda, agenda.ready(keys(agenda, 0), set())) == [1, 2, 3, 4]


def test_cells_without_their_training_in_the_sweep_need_none(tmp_path):
    config = text_config(tmp_path)
    agenda = agenda_of(config, [cell for cell in plan(config) if cell.metric != "training"])
    assert numbers(agenda, agenda.ready(set(), set())) == [0]


@pytest.mark.parametrize(
    ("ready", "last", "chosen"),
    [
        ((2, 3, 6), None, 6),  # training first: others wait for it
        ((2, 3, 7), 3, 7),  # then baselines
        ((2, 3, 8), 7, 8),  # then what is measured on the weights that the worker holds
        ((2, 3, 8), 0, 2),
        ((2, 3, 8), None, 2),
        ((2, 3, 12, 13), 10, 12),  # seed 1
        ((5, 18), 12, 18),  # other weights, but the same text
    ],
)
def test_a_worker_is_given_what_others_wait_for_then_what_it_holds(tmp_path, ready, last, chosen):
    config = dataclasses.replace(text_config(tmp_path), seeds=(0, 1))
    agenda = agenda_of(config, plan(config))
    order = list(agenda.cells)
    key = agenda.choice([order[place] for place in ready], None if last is None else order[last])
    assert order.index(key) == chosen
