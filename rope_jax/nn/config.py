"""What an attention block and a decoder are made of: frozen, hashable, refused at construction when it cannot work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rope_jax.attention import BACKENDS
from rope_jax.layout import Layout, check_layout
from rope_jax.nn.checks import (
    check_count,
    check_flag,
    check_group_windows,
    check_member,
    check_pattern,
    check_softcap,
    group_names,
    window_pairs,
)

Positional = Literal["rope", "none", "learned", "sinusoidal", "alibi"]

_POSITIONAL = ("rope", "none", "learned", "sinusoidal", "alibi")
_DTYPES = ("float32", "bfloat16", "float16")
_UNROLLED = 8


@dataclass(frozen=True)
class AttentionConfig:
    """One attention block.

    Attributes:
      embed: width of the residual stream.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; None: as many (multi-head), 1: multi-query.
      head_dim: channels of a head; None: embed / heads.
      qk_norm: RMS-normalise queries and keys before they are rotated.
      bias: biases on all four projections.
      window: tokens that a query sees, itself included; None: the whole past.
      softcap: largest absolute logit; None: no cap.
      sinks: a learned logit per head that takes part in the softmax and carries no value.
      layout: which channels form a pair, "half" or "interleaved".
      backend: passed to `attend`.

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
    qk_norm: bool = False
    bias: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    layout: Layout = "half"
    backend: str = "auto"

    def __post_init__(self) -> None:
        check_count("embed", self.embed)
        check_count("heads", self.heads)
        check_count("kv_heads", self.kv_heads, none="gives every query head its own")
        check_count("head_dim", self.head_dim, none="means embed / heads")
        check_count("window", self.window, none="sees the whole past")
        for name in ("qk_norm", "bias", "sinks"):
            check_flag(name, getattr(self, name))
        check_softcap(self.softcap)
        check_member("backend", self.backend, ("auto", *BACKENDS))
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


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer: pre-RMSNorm, SwiGLU, one layer scan.

    Attributes:
      vocab, embed, layers, heads, kv_heads, head_dim: sizes; the last two as in `AttentionConfig`.
      mlp: hidden width of SwiGLU; None: 8/3 embed, rounded up to a multiple of 16.
      tied: the unembedding is the embedding, whose rows are then multiplied by sqrt(embed) at the input.
      qk_norm, bias, softcap, sinks, layout, backend: as in `AttentionConfig`; `bias` covers the MLP too.
      pattern: layer-group names, repeated over the layers; a string means its letters ("LLLG").
      windows: (group, tokens) pairs, or a dict; other groups see the whole past.
      positional: "rope" turns by the schedule of the call; "none", "learned", "sinusoidal" (Vaswani et al.,
        arXiv 1706.03762) and "alibi" (Press et al., arXiv 2108.12409) are there to compare with.
      max_length: rows of the learned position table, for positional="learned" only.
      remat: recompute every layer in the backward pass.
      unroll: layers per step of the layer scan; None: all of them up to 8 layers, else 1.
      dtype: of activations, "float32", "bfloat16" or "float16"; parameters are float32.

    Raises:
      TypeError, ValueError: fields of the wrong type, sizes that do not fit each other, windows of unknown groups, a
        setting that would have no effect.

    Example:
      >>> DecoderConfig(vocab=256, embed=64, layers=5, heads=4, pattern="LLG", windows=(("L", 16),)).layer_groups
      ('L', 'L', 'G', 'L', 'L')
    """

    vocab: int
    embed: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    mlp: int | None = None
    tied: bool = True
    qk_norm: bool = False
    bias: bool = False
    pattern: Sequence[str] = ("all",)
    windows: Any = ()
    softcap: float | None = None
    sinks: bool = False
    positional: Positional = "rope"
    max_length: int | None = None
    layout: Layout = "half"
    remat: bool = False
    unroll: int | None = None
    backend: str = "auto"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        # Lists, as configuration files give them, would make the config unhashable.
        object.__setattr__(self, "pattern", group_names(self.pattern))
        object.__setattr__(self, "windows", window_pairs(self.windows))
        check_count("vocab", self.vocab)
        check_count("layers", self.layers)
        check_count("mlp", self.mlp, none="means 8/3 embed")
        check_count("max_length", self.max_length, none="goes with all positions but learned ones")
        check_count("unroll", self.unroll, none="unrolls up to 8 layers")
        check_flag("tied", self.tied)
        check_flag("remat", self.remat)
        _ = self.attention
        check_member("positional", self.positional, _POSITIONAL)
        check_member("dtype", self.dtype, _DTYPES)
        check_pattern(tuple(self.pattern), self.layers)
        check_group_windows(self.windows, self.groups)
        if (self.positional == "learned") != (self.max_length is not None):
            raise ValueError(
                f'`max_length` must be given for positional="learned" and for it alone; got {self.max_length} for '
                f"{self.positional!r}. The other kinds reach every length."
            )
        if self.positional == "sinusoidal" and self.embed % 2:
            raise ValueError(f"`embed` must be even for sinusoidal positions; got {self.embed}. Add a channel.")

    @property
    def attention(self) -> AttentionConfig:
        """The block that every layer has; the window is the layer's own."""
        return AttentionConfig(
            embed=self.embed,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            qk_norm=self.qk_norm,
            bias=self.bias,
            softcap=self.softcap,
            sinks=self.sinks,
            layout=self.layout,
            backend=self.backend,
        )

    @property
    def mlp_width(self) -> int:
        """Hidden width of SwiGLU, with the default filled in."""
        return -(-8 * self.embed // 48) * 16 if self.mlp is None else self.mlp

    @property
    def unrolled(self) -> int:
        """Layers per step of the layer scan, with the default filled in."""
        if self.unroll is not None:
            return min(self.unroll, self.layers)
        return self.layers if self.layers <= _UNROLLED else 1

    @property
    def layer_groups(self) -> tuple[str, ...]:
        """The group of every layer."""
        return tuple(self.pattern[layer % len(self.pattern)] for layer in range(self.layers))

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups, each once, in the order of their first layers."""
        return tuple(dict.fromkeys(self.pattern))

    @property
    def group_windows(self) -> tuple[int | None, ...]:
        """The window of every group."""
        return tuple(dict(self.windows).get(group) for group in self.groups)

    @property
    def largest_window(self) -> int | None:
        """The window of the layers that see furthest; None: the whole past."""
        windows = [window for window in self.group_windows if window is not None]
        return max(windows) if len(windows) == len(self.groups) else None
