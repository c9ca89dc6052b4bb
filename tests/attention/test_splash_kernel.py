"""What the TPU kernel is told of tokens and masks: of whole rows, and of the shards of one."""

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention

from rope_jax.attention import dealt, splash_kernel
from rope_jax.attention.base import Shard


@pytest.mark.parametrize("window", [None, 1, 2, 16, 17, 40, 63])
@pytest.mark.parametrize("dealing", [None, "contiguous", "zigzag"])
def test_masks_answer_for_a_block_as_if_it_were_written_out(window, dealing):
    """Any pair seen, all pairs seen, and where only some are, which: of whole rows, and of all shards of one."""
    seq, side = 72, 16
    shard = dealing and Shard("context", 3, dealing)
    tokens = splash_kernel.tokens(splash_kernel.Setting(window, None, side, True, seq, shard))
    assert tokens.size == (80 if dealing is None else 96)
    found = splash_kernel.mask(tokens, 80, window)
    apart = tokens[:, None] - np.arange(80)
    written = (apart >= 0) & (apart < (seq if window is None else window))
    for i, j in np.ndindex(tokens.size // side, 80 // side):
        index = slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side)
        block, want = found[index], written[index]
        assert (block.any(), block.all()) == (want.any(), want.all())
        if want.any() and not want.all():
            np.testing.assert_array_equal(block, want)
    assert isinstance(found, splash_attention.Mask)


@pytest.mark.parametrize(("dealing", "shard"), [("contiguous", [24, 25, 26]), ("zigzag", [12, 13, 14])])
def test_the_queries_of_a_shard_are_the_tokens_it_was_dealt(dealing, shard):
    """24 tokens a shard fill a block and a half; the rest repeats the last, so that tokens rise inside a block."""
    setting = splash_kernel.Setting(None, None, 16, True, 72, Shard("context", 3, dealing))
    parts = splash_kernel.tokens(setting).reshape(3, 32)
    np.testing.assert_array_equal(parts[:, :24].reshape(-1), dealt(72, 3, dealing))
    assert parts[1, :3].tolist() == shard and np.all(parts[:, 24:] == parts[:, 23:24])
