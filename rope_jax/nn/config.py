"""What a decoder is made of: frozen, hashable, refused at construction when it cannot work."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from rope_jax.attention import Sharding
from rope_jax.layout import Layout
from rope_jax.nn.attention_config import AttentionConfig
from rope_jax.nn.checks import (
    biased,
    check_flag,
    check_group_windows,
    check_member,
    check_pattern,
    check_positive,
    group_names,
    settle_counts,
    stream_axes,
    window_pairs,
)

Positional = Literal["rope", "none", "learned", "sinusoidal", "alibi"]
Norm = Literal["rms", "layer"]
Placement = Literal["pre", "post", "both"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

# The fields that are one of a few names.
_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "positional": get_args(Positional),
        "norm": get_args(Norm),
        "norm_placement": get_args(Placement),
        "activation": get_args(Activation),
        "dtype": ("float32", "bfloat16", "float16"),
    }
)
_UNROLLED = 8


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer: one layer scan; what published families differ in are its fields.

    Attributes:
      vocab, embed, layers, heads, kv_heads, head_dim: sizes; the last two as in `AttentionConfig`.
      mlp: hidden width of the MLP; None: 8/3 embed, rounded up to a multiple of 16.
      tied: the unembedding is the embedding.
      embed_scale: what rows of the embedding are multiplied by at the input; None: sqrt(embed) when tied, else 1.
      qk_norm, scale, softcap, sinks, scalable_softmax, layout, backend, sharding: as in `AttentionConfig`.
      bias: biases on all projections, or on those of "qkv", "out" and "mlp" that are named.
      norm: "rms" (arXiv 1910.07467) or "layer" (arXiv 1607.06450), the latter with a bias.
      norm_epsilon: what norms add to the mean square or variance.
      norm_placement: where a norm stands, at the attention and at the MLP alike: "pre", x + f(norm(x)); "post",
        x + norm(f(x)) (OLMo 2); "both", x + norm(f(norm(x))) (Gemma 2). One norm follows the last layer.
      parallel: attention and MLP read the same x and are added together (GPT-NeoX).
      activation: of the MLP.
      gated: whether the MLP's activated gate multiplies its other half (arXiv 2002.05202); False: act(x W_up) W_down.
      logit_softcap: largest absolute logit of the vocabulary; None: no cap.
      pattern: layer-group names, repeated over the layers; a string means its letters ("LLLG").
      windows: (group, tokens) pairs, or a dict; other groups see the whole past.
      positional: "rope" turns by the schedule of the call; "none", "learned", "sinusoidal" (Vaswani et al.,
        arXiv 1706.03762) and "alibi" (Press et al., arXiv 2108.12409) are there to compare with.
      pair_axes: for each pair the position stream that turns it, from the `streams` of a call (m-RoPE).
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
    embed_scale: float | None = None
    qk_norm: bool | Literal["full"] = False
    bias: bool | Sequence[str] = False
    norm: Norm = "rms"
    norm_epsilon: float = 1e-6
    norm_placement: Placement = "pre"
    parallel: bool = False
    activation: Activation = "silu"
    gated: bool = True
    logit_softcap: float | None = None
    pattern: Sequence[str] = ("all",)
    windows: Any = ()
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    scalable_softmax: bool = False
    positional: Positional = "rope"
    pair_axes: Any = None
    max_length: int | None = None
    layout: Layout = "half"
    remat: bool = False
    unroll: int | None = None
    backend: str = "auto"
    dtype: str = "float32"
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        # Lists, as configuration files give them, would make the config unhashable.
        object.__setattr__(self, "pattern", group_names(self.pattern))
        object.__setattr__(self, "windows", window_pairs(self.windows))
        object.__setattr__(self, "bias", biased(self.bias, ("qkv", "out", "mlp")))
        object.__setattr__(self, "pair_axes", stream_axes(self.pair_axes, self.positional))
        settle_counts(
            self,
            vocab=None,
            layers=None,
            mlp="means 8/3 embed",
            max_length="goes with all positions but learned ones",
            unroll="unrolls up to 8 layers",
        )
        for name in ("tied", "parallel", "gated", "remat"):
            check_flag(name, getattr(self, name))
        for name, kinds in _KINDS.items():
            check_member(name, getattr(self, name), kinds)
        check_positive("embed_scale", self.embed_scale, none="means sqrt(embed) when tied, else 1")
        check_positive("logit_softcap", self.logit_softcap, none="leaves the logits uncapped")
        attention = self.attention
        for name in ("embed", "heads", "kv_heads", "head_dim"):
            object.__setattr__(self, name, getattr(attention, name))
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
            norm_epsilon=self.norm_epsilon,
            bias=tuple(place for place in self.biased if place != "mlp"),
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            scalable_softmax=self.scalable_softmax,
            layout=self.layout,
            backend=self.backend,
            sharding=self.sharding,
        )

    @property
    def biased(self) -> tuple[str, ...]:
        """The projections that have a bias."""
        return biased(self.bias, ("qkv", "out", "mlp"))

    @property
    def input_scale(self) -> float:
        """`embed_scale`, with the default filled in."""
        if self.embed_scale is not None:
            return self.embed_scale
        return math.sqrt(self.embed) if self.tied else 1.0

    @property
    def mlp_width(self) -> int:
        """Hidden width of the MLP, with the default filled in."""
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
        return self.window_of(self.groups)

    def window_of(self, groups: Sequence[str]) -> int | None:
        """The window of those of some groups that see furthest; None: the whole past."""
        windows = [dict(self.windows)[group] for group in groups if group in dict(self.windows)]
        return max(windows) if len(windows) == len(groups) else None
