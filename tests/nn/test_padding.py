"""Rows padded on the left or the right, or packed, have the logits that they have alone, whatever depends on length."""

from functools import partial

import jax
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.attention import DualChunk
from tests.nn.models import decoder

A, B, WIDTH = 5, 9, 14
IDS = np.random.default_rng(2).integers(0, 13, A + B).astype(np.int32)
DYNAMIC = rj.DynamicNTK(factor=2.0, original_length=7)
LONG = rj.LongRoPE(short_factors=(1, 1, 1, 1), long_factors=(1, 2, 4, 8), original_length=7, factor=2.0)
KINDS = {
    "dynamic": (DYNAMIC, None),
    "longrope": (LONG, None),
    "dynamic, dual chunks, log n": (rj.DynamicYaRN(original_length=7), DualChunk(chunk=4, local=1)),
}


@partial(jax.jit, static_argnames=("method", "score_map"))
def logits(model, ids, positions, segments, method, score_map):
    """The length of every token's own document, found in the program."""
    spec = rj.RopeSpec(8, theta=100.0, transform=method, query_scale=score_map and rj.LogN(original_length=3))
    schedule = spec.schedule(rj.lengths(positions, segments))
    scale = spec.logit_scale(positions)
    return model(ids, schedule, positions=positions, segments=segments, score_map=score_map, query_scale=scale)


def laid_out(*rows):
    """Rows of (document, where it starts), as ids, positions and segments; the rest is padding."""
    ids, positions, segments = (np.full((len(rows), WIDTH), fill, np.int32) for fill in (7, -1, 0))
    for row, documents in enumerate(rows):
        for number, (document, start) in enumerate(documents, 1):
            here = slice(start, start + len(document))
            ids[row, here], positions[row, here], segments[row, here] = document, np.arange(len(document)), number
    return ids, positions, segments


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_as_alone(kind):
    short, long = IDS[:A], IDS[A:]
    run = partial(logits, decoder(), method=KINDS[kind][0], score_map=KINDS[kind][1])
    alone = {}
    for document in (short, long):
        positions = np.arange(len(document), dtype=np.int32)[None]
        alone[len(document)] = run(document[None], positions, np.ones_like(positions))[0]
    layouts = {
        "left": laid_out([(short, WIDTH - A)], [(long, WIDTH - B)]),
        "right": laid_out([(short, 0)], [(long, 0)]),
        "both": laid_out([(long, 3)], [(short, 4)]),
        "packed": laid_out([(short, 0), (long, A)], [(long, 0), (short, B)]),
    }
    for how, (ids, positions, segments) in layouts.items():
        # What padding holds, and its segment, tell nobody anything.
        for segments_of_padding in (0, 1) if how != "packed" else (0,):
            got = run(ids, positions, np.where(positions < 0, segments_of_padding, segments).astype(np.int32))
            for row in range(2):
                for number in set(segments[row]) - {0}:
                    here = segments[row] == number
                    expected = alone[int(here.sum())]
                    np.testing.assert_allclose(got[row][here], expected, rtol=0, atol=2e-5, err_msg=how)
    # Had the short document the length of the long one, it would not be the same.
    stretched = run(short[None], np.arange(A, dtype=np.int32)[None] + (B - A), np.ones((1, A), np.int32))[0]
    assert np.max(np.abs(stretched - alone[A])) > 1e-3
