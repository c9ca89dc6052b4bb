"""Every field of the decoder's configuration acts, and what cannot work is refused before a model is made."""

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from tests.nn.models import PLAIN, POSITIONS, SMALL, TOKEN_IDS, decoder, forward
from tests.unchecked import unchecked

BASE = nn.DecoderConfig(vocab=13, embed=16, layers=2, heads=2, kv_heads=1, mlp=16, unroll=1)
LEARNED = dataclasses.replace(BASE, positional="learned", max_length=32)
NARROW = rj.geometric_schedule(4)
# (the field, what it is set to, the configuration it is set in)
CHANGES = (
    *(("vocab", 14, BASE), ("embed", 8, BASE), ("layers", 3, BASE), ("heads", 4, BASE), ("kv_heads", 2, BASE)),
    *(("head_dim", 10, BASE), ("mlp", 32, BASE), ("tied", False, BASE), ("embed_scale", 2.0, BASE)),
    *(("qk_norm", True, BASE), ("bias", True, BASE), ("norm", "layer", BASE), ("norm_epsilon", 1e-5, BASE)),
    *(("norm_placement", "both", BASE), ("parallel", True, BASE), ("activation", "gelu", BASE), ("gated", False, BASE)),
    ("logit_softcap", 9.0, BASE),
    *(("pattern", "AB", dataclasses.replace(BASE, pattern="A", windows={"A": 3})), ("windows", {"all": 3}, BASE)),
    *(
        ("scale", 0.5, BASE),
        ("softcap", 0.5, BASE),
        ("sinks", True, BASE),
        ("scalable_softmax", True, BASE),
        ("positional", "alibi", BASE),
        ("pair_axes", (0, 1), BASE),
        ("max_length", 64, LEARNED),
    ),
    *(("layout", "interleaved", BASE), ("remat", True, BASE), ("unroll", 2, BASE), ("backend", "chunked", BASE)),
    ("dtype", "bfloat16", BASE),
)


@functools.cache
def program(config):
    """Shapes of the parameters, and the program of a forward: a field that acts shows in one of them."""
    graph, state = nnx.split(decoder(config))
    schedule = NARROW if config.positional == "rope" else None

    streams = None if config.pair_axes is None else np.stack([POSITIONS, POSITIONS])

    def logits(state):
        return nnx.merge(graph, state)(TOKEN_IDS, schedule, positions=POSITIONS, streams=streams)

    return [leaf.shape for leaf in jax.tree.leaves(state)], str(jax.make_jaxpr(logits)(state))


def test_every_field_is_changed():
    """All but the sharding, which acts where there are devices to divide over: tests/eight_devices."""
    assert [*(name for name, *_ in CHANGES), "sharding"] == [f.name for f in dataclasses.fields(nn.DecoderConfig)]


@pytest.mark.parametrize(("name", "value", "config"), CHANGES, ids=[name for name, *_ in CHANGES])
def test_every_field_reaches_the_program(name, value, config):
    before, after = program(config), program(dataclasses.replace(config, **{name: value}))
    assert before != after


def test_defaults_are_filled_in():
    config = nn.DecoderConfig(vocab=256, embed=128, layers=9, heads=4)
    assert (config.mlp_width, config.unrolled, config.attention.kv_count, config.attention.head_width) == (
        352,
        1,
        4,
        32,
    )
    assert dataclasses.replace(config, layers=8).unrolled == 8
    assert config.layer_groups == ("all",) * 9 and config.largest_window is None
    leaves = jax.tree.leaves(decoder(dataclasses.replace(config, layers=4)))
    assert sum(leaf.size for leaf in leaves) == 836_736


def test_patterns_repeat_over_the_layers():
    config = nn.DecoderConfig(vocab=8, embed=8, layers=6, heads=1, pattern="LLLG", windows=[["L", 4]])
    assert config.layer_groups == ("L", "L", "L", "G", "L", "L")
    assert config.group_windows == (4, None) and hash(config) == hash(dataclasses.replace(config))
    names = nn.DecoderConfig(vocab=8, embed=8, layers=2, heads=1, pattern=["local", "global"], windows={"local": 4})
    assert names.layer_groups == ("local", "global")


def test_biases_are_places_and_equal_configs_are_equal():
    everywhere = dataclasses.replace(BASE, bias=True)
    assert everywhere == dataclasses.replace(BASE, bias=["mlp", "out", "qkv"])
    assert hash(everywhere) == hash(dataclasses.replace(BASE, bias=("qkv", "out", "mlp")))
    block = decoder(dataclasses.replace(BASE, bias=("qkv",))).blocks
    assert block.attention.query.bias is not None and block.attention.out.bias is None and block.mlp.up.bias is None


REFUSED = (
    ({"heads": 3}, "`heads` must be a multiple of `kv_heads`; got 3 heads for 2 kv heads"),
    ({"head_dim": None, "embed": 18}, "`embed` must be a multiple of `heads` when `head_dim` is None; got 18"),
    ({"windows": (("M", 4),)}, "`windows` must name groups of the pattern ('L', 'G'), each once; got ['M']"),
    ({"windows": (("L", 0),)}, "`windows` must give every group at least 1 token; got 0 for 'L'"),
    ({"windows": ("L4x",)}, "`windows` must be (group, tokens) pairs"),
    ({"windows": (5,)}, "`windows` must be (group, tokens) pairs"),
    ({"pattern": "LLGG"}, "`pattern` must name between 1 and 3 (the layers) groups"),
    ({"pattern": (), "windows": ()}, "`pattern` must name between 1 and 3 (the layers) groups"),
    ({"positional": "learned"}, '`max_length` must be given for positional="learned" and for it alone; got None'),
    ({"max_length": 8}, "`max_length` must be given for positional=\"learned\" and for it alone; got 8 for 'rope'"),
    ({"positional": "rotary"}, "`positional` must be one of rope, none, learned, sinusoidal, alibi; got 'rotary'"),
    ({"dtype": "float8"}, "`dtype` must be one of float32, bfloat16, float16; got 'float8'"),
    ({"layout": "split"}, "`layout` must be"),
    ({"backend": "fastest"}, "`backend` must be one of auto"),
    ({"layers": 0}, "`layers` must be at least 1; got 0"),
    ({"softcap": -1.0}, "`softcap` must be a positive number or None; got -1.0"),
    ({"scale": 0.0}, "`scale` must be a positive number or None; got 0.0"),
    ({"softcap": 1e39}, "`softcap` must be a positive number or None; got 1e+39. Write a number above 0 that float32"),
    ({"logit_softcap": 1e-50}, "`logit_softcap` must be a positive number or None; got 1e-50. Write a number above 0"),
    ({"embed_scale": float("inf")}, "`embed_scale` must be a positive number or None; got inf"),
    ({"logit_softcap": -1.0}, "`logit_softcap` must be a positive number or None; got -1.0"),
    ({"norm_epsilon": 0.0}, "`norm_epsilon` must be a positive number; got 0.0"),
    ({"norm": "batch"}, "`norm` must be one of rms, layer; got 'batch'"),
    ({"norm_placement": "peri"}, "`norm_placement` must be one of pre, post, both; got 'peri'"),
    ({"activation": "swish"}, "`activation` must be one of silu, gelu, gelu_tanh, relu; got 'swish'"),
    ({"bias": ("qkv", "norm")}, "`bias` must name projections, each once; got ('qkv', 'norm'). Name some of qkv, out"),
    ({"bias": ("qkv", "qkv")}, "`bias` must name projections, each once; got ('qkv', 'qkv')"),
    ({"pair_axes": (0, -1)}, "`pair_axes` must name a stream, 0 or above, for every pair; got (0, -1)"),
    ({"pair_axes": ()}, "`pair_axes` must name a stream, 0 or above, for every pair; got ()"),
    ({"pair_axes": (0,), "positional": "alibi"}, "`pair_axes` must be None for positional='alibi'; got (0,)"),
    ({"embed": 15, "positional": "sinusoidal"}, "`embed` must be even for sinusoidal positions; got 15"),
)


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_work_is_refused_at_construction(changes, message):
    with unchecked(), pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(SMALL, **changes)


def test_counts_are_integers():
    with unchecked(), pytest.raises(TypeError, match=re.escape("`embed` must be an integer; got 16.0")):
        dataclasses.replace(SMALL, embed=16.0)  # type: ignore[arg-type]
    with unchecked(), pytest.raises(TypeError, match=re.escape("`mlp` must be an integer or None; got True")):
        dataclasses.replace(SMALL, mlp=True)


@pytest.mark.parametrize("value", ["false", "no", 0, 3, None])
@pytest.mark.parametrize("name", ["tied", "parallel", "gated", "sinks", "scalable_softmax", "remat"])
def test_flags_are_true_or_false(name, value):
    with unchecked(), pytest.raises(TypeError, match=re.escape(f"`{name}` must be True or False; got {value!r}. ")):
        dataclasses.replace(SMALL, **{name: value})


MISTYPED = (
    ({"softcap": True}, "`softcap` must be a positive number or None; got True. Write a number above 0 that float32"),
    ({"softcap": "x"}, "`softcap` must be a positive number or None; got 'x'. Write a number above 0 that float32"),
    ({"qk_norm": "false"}, "`qk_norm` must be True, False or \"full\"; got 'false'. "),
    ({"pair_axes": "01"}, "`pair_axes` must be integers or None; got '01'. "),
    ({"pair_axes": (0, True)}, "`pair_axes` must be integers or None; got (0, True). "),
    ({"qk_norm": 1}, '`qk_norm` must be True, False or "full"; got 1. '),
    ({"bias": "qkv"}, "`bias` must be True, False or a sequence of names; got 'qkv'. Name some of qkv, out, mlp."),
    ({"bias": None}, "`bias` must be True, False or a sequence of names; got None. "),
    ({"pattern": 5}, "`pattern` must be a string or a sequence of strings; got 5. "),
    ({"pattern": None}, "`pattern` must be a string or a sequence of strings; got None. "),
    ({"pattern": ("L", 5)}, "`pattern` must be a string or a sequence of strings; got ('L', 5). "),
    ({"windows": 5}, "`windows` must be (group, tokens) pairs or a dict; got 5. Write"),
    ({"windows": None}, "`windows` must be (group, tokens) pairs or a dict; got None. Write"),
    ({"backend": ["xla"]}, "`backend` must be one of auto, reference, xla, chunked, splash, cudnn; got ['xla']."),
    ({"dtype": np.float32}, "`dtype` must be one of float32, bfloat16, float16; got <class 'numpy.float32'>. Choose"),
)


@pytest.mark.parametrize(("changes", "message"), MISTYPED)
def test_what_is_of_another_type_is_refused(changes, message):
    with unchecked(), pytest.raises(TypeError, match=re.escape(message)):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(("name", "cure"), [("window", "None sees the whole past."), ("kv_heads", "None gives every")])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), ("4", TypeError)])
def test_counts_say_what_to_write_instead(name, cure, value, error):
    with unchecked(), pytest.raises(error, match=f"Write a whole number from 1 on; {cure}"):
        dataclasses.replace(SMALL.attention, **{name: value})


def test_changing_the_layout_changes_the_logits():
    """Both layouts have the same shapes and nearly the same program: this one shows in the numbers."""
    logits = [
        forward(decoder(dataclasses.replace(BASE, layout=layout)), TOKEN_IDS, PLAIN, POSITIONS)
        for layout in ("half", "interleaved")
    ]
    assert np.max(np.abs(logits[0] - logits[1])) > 1e-3


def test_counts_of_numpy_are_counts():
    """Kept as Python's: the same text, hash and program."""
    counts = {"vocab": 13, "embed": 16, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 16, "unroll": 1}
    plain: dict[str, Any] = counts | {"windows": {"all": 3}, "pair_axes": (0, 1, 0, 1)}
    given: dict[str, Any] = {name: np.int64(count) for name, count in counts.items()}
    given |= {"windows": {"all": np.int32(3)}, "pair_axes": tuple(np.array((0, 1, 0, 1)))}
    block: dict[str, Any] = {"embed": np.int64(16), "heads": np.uint8(2), "window": np.int32(3)}
    wrong: Any = np.True_
    with unchecked():
        assert repr(nn.DecoderConfig(**given)) == repr(nn.DecoderConfig(**plain))
        assert repr(nn.AttentionConfig(**block)) == repr(nn.AttentionConfig(embed=16, heads=2, window=3))
        with pytest.raises(TypeError, match=r"`heads` must be an integer; got np\.True_"):
            dataclasses.replace(BASE, heads=wrong)
