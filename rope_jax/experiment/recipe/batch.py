"""A batch as the train step takes it, made of packed rows."""

from typing import Any, NamedTuple

import numpy as np

from rope_jax.experiment.recipe.pieces import NO_TARGET
from rope_jax.experiment.recipe.settings import RecipeConfig


class Batch(NamedTuple):
    """Rows of tokens on the host, every part [rows, length].

    Args:
        inputs: int32, what is read; 0 in padding.
        targets: int32, the token that follows in the document; 0 where there is none.
        weights: float32, 1 where there is a target and 0 otherwise.
        positions: int32, -1 in padding.
        segments: int32, from 1 in every row, 0 in padding.
        sources: int32, the source of the document, from 1, 0 in padding; for the record, no model needs it.
    """

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    sources: np.ndarray


class Finish:
    """Makes a process's part of a batch: every `processes`-th row, from row `process` on."""

    def __init__(self, recipe: RecipeConfig, process: int, processes: int, target_length: int | None) -> None:
        self.masked = recipe.masked
        self.process, self.processes = process, processes
        self.skips = None if target_length is None else Skips(recipe.seed, recipe.pose_chunks, target_length)

    def __call__(self, element: dict[str, Any]) -> Batch:
        """A batch of packed rows as `Batch`."""
        tokens, segments, positions, rows = (
            element[name][self.process :: self.processes] for name in ("tokens", "segments", "positions", "row")
        )
        real = segments > 0
        trained = real & (tokens[..., 1] != NO_TARGET)
        if not self.masked:
            segments = real.astype(np.int32)
            positions = np.cumsum(segments, axis=1, dtype=np.int32) - 1
        positions = np.where(real, positions, -1) if self.skips is None else self.skips(real, rows)
        return Batch(
            inputs=np.ascontiguousarray(tokens[..., 0]),
            targets=np.where(trained, tokens[..., 1], 0).astype(np.int32),
            weights=trained.astype(np.float32),
            positions=positions.astype(np.int32),
            segments=np.ascontiguousarray(segments, np.int32),
            sources=np.ascontiguousarray(tokens[..., 2]),
        )


class Skips:
    """PoSE positions of rows, drawn by the row's number, so neither processes nor a restart change them.

    A row is one text to PoSE, packed documents included: its chunks are cut and moved within the target length, and
    positions rise through the row.

    Reference: Zhu et al., arXiv 2309.10400.
    """

    def __init__(self, seed: int, chunks: int, target_length: int) -> None:
        import jax

        from rope_jax.sampled_positions import pose_positions

        def drawn(mask: Any, row: Any) -> Any:
            key = jax.random.fold_in(jax.random.key(seed), row)
            return pose_positions(mask[None], length=target_length, rng=key, chunks=chunks)[0]

        self.drawn = jax.jit(jax.vmap(drawn))
        # Beside the accelerator, which is busy with the step.
        try:
            self.device: Any = jax.local_devices(backend="cpu")[0]
        except RuntimeError:
            # Where JAX_PLATFORMS leaves the CPU out.
            self.device = None

    def __call__(self, real: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """int32 [rows, length], -1 in padding."""
        import jax

        with jax.default_device(self.device):
            return np.asarray(self.drawn(real, rows.astype(np.uint32)))
