"""A stream that is left and taken up again gives what it would have given."""

import json
from typing import Any

import pytest

from rope_jax.experiment.recipe.batches import batches
from rope_jax.experiment.recipe.corpus import read_corpus
from tests.experiment.recipe.texts import assert_same, recipe_of, write_texts

STEPS, LENGTH, ROWS = 80, 16, 8
SETTINGS: dict[str, dict[str, Any]] = {
    "best_fit": {"packing": "best_fit"},
    "concat": {"packing": "concat"},
    "none": {"packing": "none"},
    "unmasked": {"packing": "best_fit", "masked": False},
    "buckets": {"packing": "best_fit", "buckets": (4, 8)},
    "pose": {"packing": "concat", "pose_chunks": 2},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    write_texts(made[0], [n % 37 + 2 for n in range(150)], seed=1)
    write_texts(made[1], [7 * n % 90 + 30 for n in range(40)], seed=2)
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_resumed_is_unbroken(folders, name):
    recipe = recipe_of(*folders, **SETTINGS[name])
    corpus = read_corpus(recipe)
    target = 64 if recipe.pose_chunks else None

    def stream():
        return batches(recipe, length=LENGTH, rows=ROWS, target_length=target, corpus=corpus)

    whole, states = stream(), []
    unbroken = []
    for _ in range(STEPS):
        states.append(json.dumps(whole.get_state()))
        unbroken.append(next(whole))
    # Every source has been read through, within a batch.
    size = {n: sum(one.tokens.size for one in source.documents) for n, source in enumerate(corpus.sources, 1)}
    for n, tokens in size.items():
        assert sum(int((batch.sources == n).sum()) for batch in unbroken) > 1.1 * tokens

    other = stream()
    for left in (0, 1, 2, 31, 32, 33, 57, 5):
        other.set_state(json.loads(states[left]))
        assert json.loads(json.dumps(other.get_state())) == json.loads(states[left])
        for batch in unbroken[left : left + 40 if left == 33 else left + 3]:
            assert_same(next(other), batch)
    other.close(), whole.close()


def test_orbax_stores_the_iterator_itself(folders, tmp_path):
    from orbax.checkpoint import v1 as orbax

    recipe = recipe_of(*folders, packing="concat")
    stream = batches(recipe, length=LENGTH, rows=ROWS)
    for _ in range(5):
        next(stream)
    orbax.save_checkpointables(tmp_path / "saved", {"data": stream})
    expected = next(stream)
    stream.close()
    restored = batches(recipe, length=LENGTH, rows=ROWS)
    orbax.load_checkpointables(tmp_path / "saved", {"data": restored})
    assert_same(next(restored), expected)
    restored.close()


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_an_epoch_has_every_document_once_and_an_order_of_its_own(tmp_path, packing):
    """Rows of one document each, so that their order is that of the documents within a block."""
    texts = write_texts(tmp_path, [LENGTH] * 256)
    stream = batches(recipe_of(tmp_path, packing=packing, seed=5), length=LENGTH, rows=64)
    met = [bytes(row.tolist()) for _ in range(8) for row in next(stream).inputs]
    stream.close()
    assert sorted(met[:256]) == sorted(met[256:]) == sorted(texts)
    assert met[:256] != met[256:] and met[:256] != list(texts)


def test_the_seed_is_the_order(folders):
    one, same, other = (batches(recipe_of(*folders, seed=seed), length=LENGTH, rows=ROWS) for seed in (1, 1, 2))
    first, again, different = next(one), next(same), next(other)
    assert_same(first, again)
    assert (first.inputs != different.inputs).any()
    for stream in (one, same, other):
        stream.close()
