"""Texts of random bytes but 0, so that a piece of one is found in no other, as files of a recipe."""

from pathlib import Path

import numpy as np

from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig


def write_texts(folder: Path, sizes, seed=0) -> tuple[bytes, ...]:
    """A file a size, named in their order."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    texts = tuple(rng.integers(1, 256, size, np.uint8).tobytes() for size in sizes)
    for number, text in enumerate(texts):
        (folder / f"{number:04d}.txt").write_bytes(text)
    return texts


def recipe_of(*folders: Path, weights=(1.0, 1.0), **settings) -> RecipeConfig:
    sources = (SourceConfig(f"{folder}/*.txt", weight) for folder, weight in zip(folders, weights, strict=False))
    return RecipeConfig(tuple(sources), **settings)


def segments_of(batch):
    """Every segment of every row: its inputs, targets, weights and positions."""
    for row in range(batch.segments.shape[0]):
        for segment in range(1, int(batch.segments[row].max()) + 1):
            here = batch.segments[row] == segment
            yield tuple(part[row][here] for part in (batch.inputs, batch.targets, batch.weights, batch.positions))


def assert_same(one, other):
    for name in one._fields:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
