"""Generation is what a loop of whole forwards would give, token by token, row by row."""

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.attention import SelfExtend
from tests.nn.models import PLAIN, SMALL, decoder, drawn, forward
from tests.unchecked import unchecked

WIDTH, STEPS, TRAINED = 32, 8, 16
PROMPTS = [row.tolist() for row in np.random.default_rng(3).integers(0, 13, (3, 15))]
STATIC = rj.RopeSpec(8, theta=100.0, transform=rj.YaRN(factor=4.0, original_length=TRAINED))
DYNAMIC = rj.RopeSpec(8, theta=100.0, transform=rj.DynamicNTK(factor=2.0, original_length=TRAINED))
SWITCHING = rj.RopeSpec(
    8,
    theta=100.0,
    transform=rj.LongRoPE(short_factors=(1, 1, 1, 1), long_factors=(1, 2, 4, 8), original_length=TRAINED, factor=4.0),
)
RING = dataclasses.replace(SMALL, layers=2, pattern=("A", "B"), windows={"A": 2, "B": 3})


def padded(rows, width=WIDTH, side="right"):
    """Token ids and positions of rows of different lengths."""
    ids, positions = np.zeros((len(rows), width), np.int32), np.full((len(rows), width), -1, np.int32)
    for index, row in enumerate(rows):
        here = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[index, here], positions[index, here] = row, np.arange(len(row))
    return ids, positions


def looped(model, rows, schedule, steps=STEPS, reserve=0):
    """The likeliest tokens and their log-probabilities by whole forwards, and the margin to the second likeliest."""
    rows, prompts = [list(row) for row in rows], np.array([len(row) for row in rows])
    log_probs, margin = np.zeros((len(rows), steps)), np.inf
    for step in range(steps):
        length = np.maximum(prompts + step, prompts + reserve)
        ids, positions = padded(rows)
        logits = np.asarray(forward(model, ids, schedule(length), positions), np.float64)
        for index, row in enumerate(rows):
            last = logits[index, len(row) - 1]
            row.append(int(np.argmax(last)))
            log_probs[index, step] = last.max() - np.log(np.sum(np.exp(last)))
            margin = min(margin, -np.diff(np.sort(last)[::-1][:2])[0])
    return np.array([row[-steps:] for row in rows]), log_probs, margin


def assert_as_looped(got, expected):
    tokens, log_probs, margin = expected
    assert margin > 1e-4, "the two likeliest tokens must be told apart"
    np.testing.assert_array_equal(got.tokens, tokens)
    np.testing.assert_allclose(got.log_probs, log_probs, rtol=0, atol=2e-5)


def alone(row, schedule, **options):
    return nn.generate(decoder(), np.array([row]), max_new_tokens=STEPS, schedule=schedule, **options)


@pytest.mark.parametrize(
    ("spec", "together", "single"),
    [(STATIC, 1, 1), (SWITCHING, 4, 2), (DYNAMIC, 7, 4)],
    ids=["static", "switching", "dynamic"],
)
def test_every_token_is_that_of_the_whole_forward(spec, together, single):
    """Twelve to 15 tokens and eight more, trained on 16: what stretches from there on is read again, and only that."""
    rows = [PROMPTS[0][:12], PROMPTS[1][:14], PROMPTS[2][:15]]
    ids, positions = padded(rows, 15)
    got = nn.generate(decoder(), ids, max_new_tokens=STEPS, positions=positions, schedule=spec.schedule)
    assert_as_looped(got, looped(decoder(), rows, spec.schedule))
    np.testing.assert_array_equal(got.positions[:, 0], [12, 14, 15])
    np.testing.assert_array_equal(np.diff(got.positions), 1)
    assert got.prefills == together
    # Three rows cross the trained length at three different tokens; alone, one crosses once.
    assert alone(rows[0], spec.schedule).prefills == single


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_rows_are_as_alone(spec, side):
    rows = [PROMPTS[0][:3], PROMPTS[1][:15], PROMPTS[2][:9]]
    ids, positions = padded(rows, 16, side)
    got = nn.generate(decoder(), ids, max_new_tokens=STEPS, positions=positions, schedule=spec.schedule)
    for index, row in enumerate(rows):
        single = alone(row, spec.schedule)
        np.testing.assert_array_equal(got.tokens[index], single.tokens[0])
        np.testing.assert_allclose(got.log_probs[index], single.log_probs[0], rtol=0, atol=2e-5)
    swapped = nn.generate(decoder(), ids[::-1], max_new_tokens=STEPS, positions=positions[::-1], schedule=spec.schedule)
    np.testing.assert_array_equal(swapped.tokens[::-1], got.tokens)


def test_no_request_leaves_a_trace_for_the_next():
    results = [alone(row, DYNAMIC.schedule) for row in (PROMPTS[0][:4], PROMPTS[1], PROMPTS[0][:4])]
    np.testing.assert_array_equal(results[0].log_probs, results[2].log_probs)
    # Short of the trained length, nothing is stretched.
    np.testing.assert_allclose(results[0].log_probs, alone(PROMPTS[0][:4], PLAIN).log_probs, rtol=0, atol=2e-6)


def test_a_reserve_fixes_the_length_of_the_request():
    row = PROMPTS[0][:12]
    for reserve, prefills in ((STEPS - 1, 1), (5, 3)):
        got = alone(row, DYNAMIC.schedule, reserve=reserve)
        assert_as_looped(got, looped(decoder(), [row], DYNAMIC.schedule, reserve=reserve))
        assert got.prefills == prefills
    assert np.max(np.abs(got.log_probs - alone(row, DYNAMIC.schedule).log_probs)) > 1e-3


def test_keeping_the_first_schedule_is_not_the_whole_forward():
    """Equal up to the trained length; from there on keys, and what was made of them, are those of a shorter text."""
    row = PROMPTS[0][:12]
    for spec in (DYNAMIC, SWITCHING):
        kept, read = (alone(row, spec.schedule, on_schedule_change=way) for way in ("keep", "recompute"))
        assert kept.prefills == 1
        np.testing.assert_allclose(kept.log_probs[0, :5], read.log_probs[0, :5], rtol=0, atol=2e-5)
        assert np.max(np.abs(kept.log_probs[0, 5:] - read.log_probs[0, 5:])) > 1e-3
    # A schedule that never changes has nothing to keep.
    kept = alone(row, STATIC.schedule, on_schedule_change="keep")
    np.testing.assert_array_equal(kept.log_probs, alone(row, STATIC.schedule).log_probs)


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("config", [SMALL, RING], ids=["full", "ring"])
def test_chunks_of_the_prompt_change_nothing(config, chunk):
    """Round a ring of few slots as well: every layer has a window there."""
    model, ids = decoder(config), np.array(PROMPTS)
    got = nn.generate(model, ids, max_new_tokens=STEPS, chunk=chunk, schedule=PLAIN)
    assert_as_looped(got, looped(model, PROMPTS, lambda length: PLAIN))


@pytest.mark.parametrize(
    "changes",
    [{"positional": "none"}, {"positional": "alibi"}, {"positional": "learned", "max_length": 23}],
    ids=["none", "alibi", "learned"],
)
def test_other_kinds_of_position_generate_alike(changes):
    model = decoder(dataclasses.replace(SMALL, layers=2, pattern=("all",), windows=(), **changes))
    if "max_length" in changes:
        with pytest.raises(ValueError, match="`max_new_tokens` must keep positions below the 23 rows"):
            nn.generate(model, np.array(PROMPTS), max_new_tokens=10, schedule=None)
    got = nn.generate(model, np.array(PROMPTS), max_new_tokens=STEPS, schedule=None)
    rows = [[*prompt, *tokens] for prompt, tokens in zip(PROMPTS, got.tokens.tolist(), strict=True)]
    ids, positions = padded(rows, 23)
    logits = jax.nn.log_softmax(forward(model, ids, None, positions))[:, 14:22]
    np.testing.assert_allclose(got.log_probs, jnp.max(logits, axis=-1), rtol=0, atol=2e-5)
    np.testing.assert_array_equal(got.tokens, jnp.argmax(logits, axis=-1))


def test_groups_have_schedules_of_their_own():
    """A rule may stretch one group and leave another; the model's own rule is used unless one is given."""

    def rule(length):
        return {"L": PLAIN, "G": DYNAMIC.schedule(length)}

    row = PROMPTS[0][:14]
    got = alone(row, rule)
    assert_as_looped(got, looped(decoder(), [row], rule))
    model = SimpleNamespace(decoder=decoder(), schedules=rule)
    own = nn.generate(model, np.array([row]), max_new_tokens=STEPS)
    np.testing.assert_array_equal(own.log_probs, got.log_probs)
    other = nn.generate(model, np.array([row]), max_new_tokens=STEPS, schedule=PLAIN)
    np.testing.assert_array_equal(other.log_probs, alone(row, PLAIN).log_probs)


def test_a_row_ends_with_its_end_token():
    whole = alone(PROMPTS[0], PLAIN)
    end = int(whole.tokens[0, 2])
    stop = int(np.flatnonzero(whole.tokens[0] == end)[0]) + 1
    ids, never = np.array(PROMPTS), sorted(set(range(13)) - {end})
    got = nn.generate(decoder(), ids, max_new_tokens=STEPS, schedule=PLAIN, end_ids=(end,))
    free = nn.generate(decoder(), ids, max_new_tokens=STEPS, schedule=PLAIN)
    for index in range(3):
        ends = np.flatnonzero(free.tokens[index] == end)
        count = int(ends[0]) + 1 if ends.size else STEPS
        assert got.lengths[index] == count
        np.testing.assert_array_equal(got.tokens[index, :count], free.tokens[index, :count])
        assert np.all(got.tokens[index, count:] == -1) and np.all(got.positions[index, count:] == -1)
        assert not np.any(got.log_probs[index, count:])
    assert got.lengths[0] == stop < STEPS
    # All ends: one token each, and no schedule change after it is worth a prefill.
    rows = nn.generate(decoder(), ids, max_new_tokens=STEPS, schedule=DYNAMIC.schedule, end_ids=(end, *never))
    assert rows.lengths.tolist() == [1, 1, 1] and rows.prefills == 1


@pytest.mark.parametrize("spec", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_score_maps_generate_alike(spec):
    score_map = SelfExtend(group=2, window=4)
    row = PROMPTS[0][:14]
    got = alone(row, spec.schedule, score_map={"L": None, "G": score_map})
    ids, positions = padded([[*row, *got.tokens[0]]])
    for step in range(STEPS):
        # Later tokens are not seen by this one.
        logits = mapped(decoder(), ids, spec.schedule(np.array([14 + step])), positions, score_map)[0, 13 + step]
        assert int(jnp.argmax(logits)) == got.tokens[0, step]
        np.testing.assert_allclose(got.log_probs[0, step], jnp.max(jax.nn.log_softmax(logits)), rtol=0, atol=2e-5)
    assert np.max(np.abs(got.log_probs - alone(row, spec.schedule).log_probs)) > 1e-3


@partial(jax.jit, static_argnames="score_map")
def mapped(model, token_ids, schedule, positions, score_map):
    return model(token_ids, schedule, positions=positions, score_map={"L": None, "G": score_map})


class Counted(nn.Decoder):
    """A decoder that counts how often it is traced."""

    traces: list[tuple[int, ...]] = []  # noqa: RUF012  (shared by the copies that jit makes)

    def hidden(self, token_ids, schedule, **rest):
        self.traces.append(token_ids.shape)
        return super().hidden(token_ids, schedule, **rest)


def test_programs_know_no_position_and_no_number_of_tokens():
    """Two traces, one that reads and one that decodes, for prompts, lengths, schedules and numbers of every kind."""
    model = drawn(lambda: Counted(SMALL, rngs=nnx.Rngs(0)))
    for prompt, steps, spec in ((PROMPTS[0], 64, STATIC), (PROMPTS[1][:3], 5, DYNAMIC), (PROMPTS[2], 20, SWITCHING)):
        for options in ({}, {"reserve": 40}, {"positions": np.arange(len(prompt))[None] + 10_000_000}):
            nn.generate(model, np.array([prompt]), max_new_tokens=steps, schedule=spec.schedule, **options)
    assert sorted(Counted.traces) == [(1, 1), (1, 64)]


def test_counts_of_numpy_are_counts():
    counts: dict[str, Any] = {"max_new_tokens": np.int64(STEPS), "chunk": np.int32(64), "reserve": np.int64(5)}
    with unchecked():
        got = nn.generate(decoder(), np.array([PROMPTS[0][:12]]), schedule=DYNAMIC.schedule, **counts)
    wanted = alone(PROMPTS[0][:12], DYNAMIC.schedule, chunk=64, reserve=5)
    np.testing.assert_array_equal(got.log_probs, wanted.log_probs)
