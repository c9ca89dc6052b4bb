"""Pieces packed into rows, a block of them at a time, so that any row is found again from its block's number."""

import bisect
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import grain
import numpy as np

Packing = Literal["best_fit", "concat", "none"]
Draw = Callable[[int, int], tuple[np.ndarray, np.ndarray]]
ROWS = 256  # rows of a block, about
PLACES = 2**22  # tokens that a block may hold, about, which lowers its rows where they are long
SPAN = 16  # rows that a piece may fill before texts are concatenated


def longest_piece(packing: Packing, length: int) -> int:
    """Tokens of a piece, at most: a row; several where pieces are cut again behind each other."""
    return SPAN * length if packing == "concat" else length


def packed(draw: Draw, packing: Packing, length: int, mean: float, seed: int) -> grain.IterDataset:
    """Rows of `length` tokens out of pieces.

    "best_fit" puts whole pieces, the longest first, where they leave the least room; "none" gives each a row. "concat"
    puts pieces behind each other and cuts where a row is full, so all but the last row of a block are full; what is cut
    goes on in another row, as a segment whose positions start at 0. Rows of a block come in random order.

    A block is drawn and packed as a whole, which takes some microseconds a piece.

    Args:
        draw: gives block number n of a count of pieces, of at most `longest_piece` tokens each: their tokens
            [sum of sizes, 3] behind each other, and their sizes.
        packing: the way.
        length: tokens of a row.
        mean: tokens of a piece, on average.
        seed: of the order of rows.

    Returns:
        Rows with `tokens` [length, 3], `segments` (from 1, 0 is padding) and `positions`.
    """
    rows = max(min(ROWS, PLACES // length), 1)
    count = rows if packing == "none" else max(round(rows * length / mean), 1)
    # One block at a time, on the thread that asks for it.
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    stream = _Blocks(draw, count, packing, length, seed).to_iter_dataset(reading)
    return grain.experimental.FlatMapIterDataset(stream, _Apart())


class _Blocks(grain.MapDataset):
    """Packed blocks by number, without end."""

    def __init__(self, draw: Draw, count: int, packing: Packing, length: int, seed: int) -> None:
        super().__init__()
        self.draw, self.count, self.packing, self.length, self.seed = draw, count, packing, length, seed

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: Any) -> Any:
        return self.slice(index) if isinstance(index, slice) else self._rows(index)

    def _rows(self, number: int) -> list[dict[str, Any]]:
        drawn, sizes = self.draw(number, self.count)
        starts = np.cumsum(sizes) - sizes
        index = np.arange(sizes.sum())
        if self.packing == "concat":
            place = index
            row = index // self.length
            # A piece that goes on in a row starts there.
            start = np.maximum(np.repeat(starts, sizes), row * self.length)
            first = np.repeat(np.arange(sizes.size), sizes)
            segment = first - first[row * self.length] + 1
        else:
            rows = best_fit(sizes, self.length) if self.packing == "best_fit" else np.arange(sizes.size)
            offset, nth = _behind_each_other(rows, sizes)
            place = np.repeat(rows * self.length + offset - starts, sizes) + index
            start, segment = np.repeat(starts, sizes), np.repeat(nth, sizes)
        count = int(place.max()) // self.length + 1
        tokens = np.zeros((count * self.length, 3), np.int32)
        tokens[place] = drawn
        segments, positions = np.zeros((2, count * self.length), np.int32)
        segments[place] = segment
        positions[place] = index - start
        shapes = {
            "tokens": (count, self.length, 3),
            "segments": (count, self.length),
            "positions": (count, self.length),
        }
        parts = {"tokens": tokens, "segments": segments, "positions": positions}
        shaped = {name: part.reshape(shapes[name]) for name, part in parts.items()}
        order = np.random.default_rng([self.seed, number]).permutation(count).tolist()
        return [{name: part[row] for name, part in shaped.items()} for row in order]


class _Apart(grain.experimental.FlatMapTransform):
    """The rows of a block one by one."""

    max_fan_out = PLACES

    def flat_map(self, element: Any) -> Sequence[Any]:
        return element


def best_fit(sizes: np.ndarray, length: int) -> np.ndarray:
    """The row of every piece: the longest piece first, each where it leaves the least room, else in a new row.

    Args:
        sizes: [pieces], at most `length`.
        length: tokens of a row.

    Returns:
        int64 [pieces], rows counted from 0.

    Example:
        >>> best_fit(np.array([3, 5, 2, 6]), 8).tolist()
        [1, 1, 0, 0]
    """
    rows = np.empty(sizes.size, np.int64)
    room: list[tuple[int, int]] = []
    count = 0
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        at = bisect.bisect_left(room, (size, 0))
        left, row = room.pop(at) if at < len(room) else (length, count)
        count += row == count
        rows[piece] = row
        if left > size:
            bisect.insort(room, (left - size, row))
    return rows


def _behind_each_other(rows: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each piece starts in its row, and its number there from 1: in the order that they came in."""
    order = np.argsort(rows, kind="stable")
    ends = np.cumsum(sizes[order])
    opens = np.ones(rows.size, bool)
    opens[1:] = rows[order][1:] != rows[order][:-1]
    lead = np.maximum.accumulate(np.where(opens, np.arange(rows.size), 0))
    offset, number = np.empty_like(rows), np.empty_like(rows)
    offset[order] = ends - sizes[order] - (ends - sizes[order])[lead]
    number[order] = np.arange(rows.size) - lead + 1
    return offset, number
