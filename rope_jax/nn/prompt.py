"""What a request starts from: the real tokens of every row, checked, with all rows ending in the same column."""

from typing import Any, NamedTuple

import numpy as np

from rope_jax.nn.config import DecoderConfig
from rope_jax.positions import LARGEST_POSITION, check_positions, is_traced


class Prompt(NamedTuple):
    """Tokens and their positions, both [batch, seq] int32 on the host: padding (-1) first, then the row's tokens."""

    token_ids: np.ndarray
    positions: np.ndarray

    @property
    def last(self) -> np.ndarray:
        """The position of every row's last token."""
        return self.positions[:, -1]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int((self.positions >= 0).sum(axis=1).max())


def aligned(token_ids: np.ndarray, positions: np.ndarray, multiple: int = 1) -> Prompt:
    """The real tokens of every row at its end, in as few columns as hold them, a multiple of `multiple`.

    Padding at the start is what a cache forgets first, and the last column is the last token of every row.
    """
    order = np.argsort(positions >= 0, axis=1, kind="stable")
    token_ids, positions = (np.take_along_axis(ids, order, axis=1) for ids in (token_ids, positions))
    width = -(-Prompt(token_ids, positions).longest // multiple) * multiple
    spare = max(width - positions.shape[1], 0)
    token_ids, positions = (
        np.pad(ids, ((0, 0), (spare, 0)), constant_values=fill)[:, -width:]
        for ids, fill in ((token_ids, 0), (positions, -1))
    )
    return Prompt(np.where(positions < 0, 0, token_ids), positions)


def read_prompt(token_ids: Any, positions: Any, config: DecoderConfig, max_new_tokens: int) -> Prompt:
    """The prompt of `generate`, after checking that every row can be read and continued."""
    for name, ids in (("token_ids", token_ids), ("positions", positions)):
        if is_traced(ids):
            raise TypeError(
                f"`{name}` must be known; got a traced array. Call generate outside jit: it compiles itself."
            )
    token_ids = np.asarray(check_positions(token_ids, "token_ids"))
    if token_ids.ndim != 2 or 0 in token_ids.shape:
        raise ValueError(
            f"`token_ids` must be [batch, seq], neither empty; got shape {token_ids.shape}. "
            "One row is a batch of one: token_ids[None]."
        )
    positions = np.arange(token_ids.shape[1])[None] if positions is None else positions
    positions = np.asarray(check_positions(positions))
    if (
        positions.ndim != 2
        or positions.shape[0] not in (1, token_ids.shape[0])
        or positions.shape[1:] != token_ids.shape[1:]
    ):
        raise ValueError(
            f"`positions` must be [batch or 1, seq] for `token_ids` [batch, seq] = {token_ids.shape}; got "
            f"{positions.shape}. rj.padded_positions(mask) makes them."
        )
    positions = np.broadcast_to(positions, token_ids.shape)
    prompt = aligned(token_ids, np.where(positions < 0, -1, positions))
    _check_tokens(prompt, config.vocab)
    _check_positions(prompt, config.max_length, max_new_tokens)
    return prompt


def _check_tokens(prompt: Prompt, vocab: int) -> None:
    real = prompt.positions >= 0
    if not real[:, -1].all():
        rows = np.flatnonzero(~real[:, -1]).tolist()
        raise ValueError(
            f"`positions` must mark at least one token of every row as real; got nothing but padding in rows {rows}. "
            "Leave such rows out, or begin them with a first token."
        )
    tokens = prompt.token_ids[real]
    if not 0 <= tokens.min() <= tokens.max() < vocab:
        raise ValueError(
            f"`token_ids` must be from 0 to vocab - 1 = {vocab - 1}; got {tokens.min()} to {tokens.max()}. "
            "Use the vocabulary that the model was made for."
        )


def _check_positions(prompt: Prompt, max_length: int | None, max_new_tokens: int) -> None:
    falls = (prompt.positions[:, 1:] <= prompt.positions[:, :-1]) & (prompt.positions[:, :-1] >= 0)
    if falls.any():
        row, column = np.argwhere(falls)[0]
        before, after = prompt.positions[row, column : column + 2]
        raise ValueError(
            f"`positions` must rise from token to token; got {after} after {before} in row {row}. "
            "Give each row the tokens of one document, in order."
        )
    # The last new token is chosen and never read.
    furthest = int(prompt.last.max()) + max_new_tokens
    if furthest > LARGEST_POSITION:
        raise ValueError(
            f"`max_new_tokens` must keep positions within 2^31 - 1; got {max_new_tokens} after position "
            f"{int(prompt.last.max())}. Subtract a common start from every position."
        )
    if max_length is not None and furthest > max_length:
        raise ValueError(
            f"`max_new_tokens` must keep positions below the {max_length} rows of the learned table; got "
            f"{max_new_tokens} after position {int(prompt.last.max())}. Learned positions end there; RoPE does not."
        )
