"""What an attention block is made of: frozen, hashable, refused at construction when it cannot work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rope_jax.attention import BACKENDS, Sharding
from rope_jax.layout import Layout, check_layout
from rope_jax.nn.checks import (
    biased,
    check_flag,
    check_member,
    check_positive,
    check_qk_norm,
    check_sharding,
    settle_counts,
)


@dataclass(frozen=True)
class AttentionConfig:
    """One attention block.

    Attributes:
      embed: width of the residual stream.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; None: as many (multi-head), 1: multi-query.
      head_dim: channels of a head; None: embed / heads.
      qk_norm: RMS-normalise queries and keys before they are rotated: True, every head by itself; "full", the whole
        projection at once (OLMo 2, arXiv 2501.00656).
      norm_epsilon: what that norm adds to the mean square.
      bias: biases on all four projections, or on those of "qkv" and "out" that are named.
      window: tokens that a query sees, itself included; None: the whole past.
      scale: what logits are multiplied by; None: head_dim^(-1/2).
      softcap: largest absolute logit; None: no cap.
      sinks: a learned logit per head that takes part in the softmax and carries no value.
      scalable_softmax: logits times s ln n, s learned per head, n = min(position + 1, window) tokens that the query
        sees (SSMax, arXiv 2501.19399). Positions must then count from the start of the document.
      layout: which channels form a pair, "half" or "interleaved".
      backend: passed to `attend`.
      sharding: how attention is divided over the mesh of `jax.set_mesh`; None: as the compiler sees fit.

    Raises:
      TypeError, ValueError: fields of the wrong type, sizes that do not fit each other, an unknown layout.

    Example:
      >>> AttentionConfig(embed=64, heads=8, kv_heads=2).head_width
      8
    """

    embed: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    qk_norm: bool | Literal["full"] = False
    norm_epsilon: float = 1e-6
    bias: bool | Sequence[str] = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    scalable_softmax: bool = False
    layout: Layout = "half"
    backend: str = "auto"
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        settle_counts(
            self,
            embed=None,
            heads=None,
            kv_heads="gives every query head its own",
            head_dim="means embed / heads",
            window="sees the whole past",
        )
        object.__setattr__(self, "bias", biased(self.bias, ("qkv", "out")))
        check_flag("sinks", self.sinks)
        check_flag("scalable_softmax", self.scalable_softmax)
        check_qk_norm(self.qk_norm)
        check_positive("norm_epsilon", self.norm_epsilon)
        check_positive("scale", self.scale, none="divides by the root of head_dim")
        check_positive("softcap", self.softcap, none="leaves the logits uncapped")
        check_member("backend", self.backend, ("auto", *BACKENDS))
        check_sharding(self.sharding)
        check_layout(self.layout)
        if self.heads % self.kv_count:
            raise ValueError(
                f"`heads` must be a multiple of `kv_heads`; got {self.heads} heads for {self.kv_count} kv heads. "
                "Every kv head serves the same number of query heads."
            )
        if self.head_dim is None and self.embed % self.heads:
            raise ValueError(
                f"`embed` must be a multiple of `heads` when `head_dim` is None; got {self.embed} for {self.heads} "
                "heads. Give head_dim."
            )

    @property
    def kv_count(self) -> int:
        """Key and value heads, with the default filled in."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head_width(self) -> int:
        """Channels of a head, with the default filled in."""
        return self.embed // self.heads if self.head_dim is None else self.head_dim

    @property
    def biased(self) -> tuple[str, ...]:
        """The projections that have a bias."""
        return biased(self.bias, ("qkv", "out"))

    @property
    def normed_heads(self) -> tuple[int, int]:
        """Query heads and key heads that one QK-norm spans."""
        return (self.heads, self.kv_count) if self.qk_norm == "full" else (1, 1)
