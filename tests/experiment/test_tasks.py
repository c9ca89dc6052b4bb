"""Tasks: what a sequence holds, which targets count, and what items depend on."""

import numpy as np
import pytest

from rope_jax.experiment.config import DataConfig, EvaluateConfig, ExperimentConfig
from rope_jax.experiment.data import Document
from rope_jax.experiment.tasks import TASKS, PasskeyTask, TextTask, make_task

DATA = DataConfig(task="passkey", key_length=3, key_symbols=32, filler_symbols=16)
BOS, QUERY, FIRST_FILLER, FIRST_KEY, VOCAB = 0, 1, 2, 18, 50


def passkey(seed: int = 0, depths: int = 4, trials: int = 5) -> PasskeyTask:
    return PasskeyTask(DATA, depths, trials, seed)


def check_sequence(row: np.ndarray, length: int) -> int:
    """Checks one sequence and returns where its key begins."""
    assert row.shape == (length + 1,)
    assert row[0] == BOS
    assert np.flatnonzero(row == BOS).tolist() == [0]
    assert np.flatnonzero(row == QUERY).tolist() == [length - 3]
    keys = np.flatnonzero(row >= FIRST_KEY)
    start = int(keys[0])
    assert keys.tolist() == [start, start + 1, start + 2, length - 2, length - 1, length]
    assert row[start : start + 3].tolist() == row[-3:].tolist()
    filler = np.delete(row, [0, length - 3, *keys])
    assert np.all((filler >= FIRST_FILLER) & (filler < FIRST_KEY))
    assert row.max() < VOCAB
    return start


@pytest.mark.parametrize("length", [7, 16, 64])
def test_a_passkey_sequence_has_its_parts_in_place(length):
    task = passkey()
    assert task.vocab == VOCAB
    batch = task.train_batch(0, length, 12)
    assert batch.tokens.dtype == np.int32
    starts = [check_sequence(row, length) for row in batch.tokens]
    assert min(starts) >= 1
    assert max(starts) <= length - 6


def test_only_the_answer_counts():
    task = passkey()
    for weights in (task.train_batch(0, 16, 2).weights, task.questions(16).weights):
        assert weights.dtype == np.float32
        assert np.all(weights[:, -3:] == 1)
        assert np.all(weights[:, :-3] == 0)


def test_keys_in_training_lie_everywhere():
    starts = {check_sequence(row, 16) for row in passkey().train_batch(0, 16, 400).tokens}
    assert starts == set(range(1, 11))


def test_training_items_are_new_at_every_step_and_seed():
    batches = [passkey(seed).train_batch(step, 16, 4).tokens for seed in (0, 1) for step in (0, 1)]
    assert np.unique(np.concatenate(batches), axis=0).shape[0] == 16
    assert np.array_equal(passkey(1).train_batch(1, 16, 4).tokens, batches[-1])


def test_questions_are_asked_at_every_depth():
    questions = passkey(depths=4, trials=5).questions(31)
    starts = [check_sequence(row, 31) for row in questions.tokens]
    assert starts == [1] * 5 + [9] * 5 + [17] * 5 + [25] * 5
    assert questions.depths is not None
    assert questions.depths.dtype == np.float32
    assert np.allclose(questions.depths, np.repeat([0, 1 / 3, 2 / 3, 1], 5))
    assert np.unique(questions.tokens, axis=0).shape[0] == 20


def test_an_item_depends_on_seed_length_depth_and_trial_alone():
    everything = passkey(depths=4, trials=5).questions(31).tokens
    task = passkey(depths=2, trials=3)
    task.questions(64)
    task.train_batch(0, 31, 2)
    some = task.questions(31).tokens
    assert np.array_equal(some, everything[[0, 1, 2, 15, 16, 17]])
    assert not np.array_equal(passkey(seed=1, depths=4, trials=5).questions(31).tokens, everything)


def test_too_short_for_two_keys_raises():
    with pytest.raises(ValueError, match=r"`length` must be at least 7"):
        passkey().train_batch(0, 6, 2)


def text_task() -> TextTask:
    windows = np.arange(3 * 33, dtype=np.int32).reshape(3, 33)
    return TextTask([Document("a", np.arange(200, dtype=np.uint8))], windows, seed=0)


def test_shorter_text_windows_end_on_the_same_bytes():
    task = text_task()
    for length in (8, 16, 32):
        questions = task.questions(length)
        assert questions.tokens.shape == (3, length + 1)
        assert questions.depths is None
        assert np.array_equal(questions.tokens, task.windows[:, -(length + 1) :])
        assert np.array_equal(questions.weights, np.ones((3, length), np.float32))


@pytest.mark.parametrize("length", [0, 33])
def test_a_text_window_that_was_not_cut_raises(length):
    with pytest.raises(ValueError, match=rf"`length` must lie between 1 and the longest window, 32; got {length}"):
        text_task().questions(length)


def test_text_batches_of_two_lengths_do_not_mix():
    task = text_task()
    short, long = task.train_batch(0, 8, 4), task.train_batch(0, 32, 2)
    assert (short.tokens.shape, long.tokens.shape) == ((4, 9), (2, 33))
    assert np.array_equal(task.train_batch(0, 8, 4).tokens, short.tokens)
    assert np.array_equal(text_task().train_batch(3, 8, 4).tokens, task.train_batch(3, 8, 4).tokens)
    assert np.all(short.weights == 1)


def test_seeds_share_the_held_out_text_and_differ_in_order(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8).tobytes())
    data = DataConfig(source=str(path), held_out_tokens=1500)
    config = ExperimentConfig(name="a", data=data, evaluate=EvaluateConfig(windows=5))
    first, second = (make_task(config, seed, longest=128) for seed in (0, 1))
    assert np.array_equal(first.questions(128).tokens, second.questions(128).tokens)
    assert not np.array_equal(first.train_batch(0, 64, 4).tokens, second.train_batch(0, 64, 4).tokens)
    held_out = path.read_bytes()[-1500:]
    assert all(bytes(row.astype(np.uint8)) in held_out for row in first.questions(128).tokens)
    assert not any(bytes(row.astype(np.uint8)) in held_out for row in first.train_batch(0, 64, 4).tokens)


def test_every_task_has_a_vocabulary_that_holds_its_tokens(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(256)) * 12)
    for name in TASKS:
        data = DataConfig(task=name, source=str(path), held_out_tokens=1000)  # type: ignore[arg-type]
        task = make_task(ExperimentConfig(name="a", data=data), seed=0, longest=64)
        tokens = np.concatenate([task.train_batch(0, 64, 4).tokens, task.questions(64).tokens])
        assert task.name == name
        assert tokens.min() >= 0
        assert tokens.max() < task.vocab
