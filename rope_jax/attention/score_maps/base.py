"""What every score map is: positions of queries and keys in each region, from which tables and distances follow."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float64, Int, Int32

from rope_jax.attention.base import sees
from rope_jax.attention.regions import Region
from rope_jax.attention.score_maps.origin import from_start
from rope_jax.float64 import evaluate
from rope_jax.layout import Layout
from rope_jax.positions import check_positions
from rope_jax.schedule import FrequencySchedule
from rope_jax.table import rotary_table


class Placement(NamedTuple):
    """Where queries and keys of one region stand: they turn by `(q_positions - kv_positions) / slowdown`.

    Attributes:
      q_positions, kv_positions: [rows, q or kv] int32.
      low, high: the region holds the pairs with low <= q_key - kv_key < high; None: no bound.
      q_key, kv_key: as the positions, from 0 on.
      slowdown: what the frequencies are divided by.
    """

    q_positions: Array
    kv_positions: Array
    low: int
    high: int | None
    q_key: Array
    kv_key: Array
    slowdown: float = 1.0


class ScoreMap(ABC):
    """A rule that gives every pair of query and key a distance to be rotated by, in place of their own.

    To add one, write a frozen keyword-only dataclass with `plain_below` and `placements`, its equation.
    Positions count from the first key of the row, or of the token's own segment: where a document lies in an array, a
    pack or a larger text changes nothing.
    """

    @property
    @abstractmethod
    def plain_below(self) -> int:
        """Distances below this one are kept, so that their scores are the plain ones."""

    @abstractmethod
    def placements(self, q_positions: Int32[Array, "_ q"], kv_positions: Int32[Array, "_ kv"]) -> tuple[Placement, ...]:
        """The regions, for positions counted from the start of the document; the first holds the nearest pairs.

        In the first, keys must not fall as positions rise: with its bounds lifted it then holds every causal pair.
        """

    def regions(
        self,
        q_positions: Int[Array | np.ndarray, "_ q"],
        kv_positions: Int[Array | np.ndarray, "_ kv"],
        schedule: FrequencySchedule,
        *,
        q_segments: Int[Array | np.ndarray, "_ q"] | None = None,
        kv_segments: Int[Array | np.ndarray, "_ kv"] | None = None,
        layout: Layout = "half",
    ) -> tuple[Region, ...]:
        """The regions for `attend`, their tables made: once per forward, outside a scan over layers.

        Args:
          q_positions, kv_positions: [batch or 1, seq] integers, as `attend` takes them; negative is padding.
          schedule: any; scaling methods compose with score maps.
          q_segments, kv_segments: [batch or 1, seq], as `attend` takes them.
          layout: as in `rotate`.

        Example:
          >>> import jax.numpy as jnp
          >>> from rope_jax import attend, geometric_schedule
          >>> from rope_jax.attention import SelfExtend
          >>> positions, x = jnp.arange(6)[None], jnp.ones((1, 6, 2, 4))
          >>> regions = SelfExtend(group=2, window=4).regions(positions, positions, geometric_schedule(4))
          >>> attend(x, x, x, q_positions=positions, kv_positions=positions, regions=regions).shape
          (1, 6, 2, 4)
        """
        positions = check_positions(q_positions, "q_positions"), check_positions(kv_positions, "kv_positions")
        placed = self.placements(*from_start(*positions, q_segments, kv_segments))

        def region(place: Placement) -> Region:
            turning = slowed(schedule, place.slowdown)
            return Region(
                q_table=rotary_table(turning, place.q_positions),
                kv_table=rotary_table(turning, place.kv_positions),
                q_key=place.q_key,
                kv_key=place.kv_key,
                low=place.low,
                high=place.high,
                layout=layout,
            )

        return tuple(region(place) for place in placed)

    def distances(self, q_positions: Any, kv_positions: Any) -> Float64[np.ndarray, "q kv"]:
        """The distance that the score of every pair is rotated by, on the host; NaN where it is not seen.

        Args:
          q_positions, kv_positions: [q] and [kv] known integers, counted from the start of the document.

        Example:
          >>> from rope_jax.attention import SelfExtend
          >>> SelfExtend(group=8, window=1024).distances([1024, 5000], [0]).ravel().tolist()
          [1024.0, 1521.0]
        """
        rows = (check_positions(q_positions, "q_positions")[None], check_positions(kv_positions, "kv_positions")[None])
        causal = np.asarray(sees(rows[0][0][:, None], rows[1][0][None, :], None, None))
        found = np.full(causal.shape, np.nan)
        for place in self.placements(*rows):
            positions, key = (_apart(pair) for pair in (place[:2], (place.q_key, place.kv_key)))
            inside = causal & (key >= place.low) & (key < (np.inf if place.high is None else place.high))
            found = np.where(inside, positions / place.slowdown, found)
        return found


def slowed(schedule: FrequencySchedule, factor: float) -> FrequencySchedule:
    """The schedule with every frequency divided by `factor`, to float64."""
    if factor == 1.0:
        return schedule

    def formula(xp: Any, known: FrequencySchedule) -> tuple[Any, Any]:
        exact = known.inv_freq + known.residual[..., 0] + known.residual[..., 1]
        return exact / factor, known.attention_scale[..., None]

    return FrequencySchedule(*evaluate(formula, schedule))


def settle_tokens(score_map: Any, *names: str) -> None:
    """Whole numbers of tokens from 1 on, which the map keeps as Python's integers."""
    cure = "Write a whole number of tokens."
    for name in names:
        value = getattr(score_map, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"`{name}` must be an integer; got {value!r}. {cure}")
        if not 1 <= value < 2**31:
            raise ValueError(f"`{name}` must be from 1 to 2^31 - 1; got {value}. {cure}")
        object.__setattr__(score_map, name, int(value))


def _apart(sides: Any) -> Float64[np.ndarray, "q kv"]:
    q, kv = (np.asarray(side, np.float64)[0] for side in sides)
    return q[:, None] - kv[None, :]
