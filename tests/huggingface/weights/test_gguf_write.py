"""Models written as GGUF files: what comes back, and what is refused before a file appears."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax import nn
from rope_jax.huggingface.weights.gguf import open_gguf
from rope_jax.huggingface.weights.gguf_tokenizer import gguf_tokenizer
from rope_jax.huggingface.weights.gguf_write import save_gguf
from tests.huggingface.weights.gguf_files import interleaved
from tests.huggingface.weights.test_gguf_tokenizer import TOKENS, byte_level

CONFIG = nn.DecoderConfig(
    vocab=len(TOKENS), embed=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=48, embed_scale=1.0, norm_epsilon=1e-5
)
LENGTHS = {"max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1}


def model(transform: rj.FrequencyTransform | None = None, **changes: Any) -> Any:
    config = replace(CONFIG, **changes)
    decoder = nn.Decoder(config, rngs=nnx.Rngs(0))
    spec = rj.RopeSpec(8, theta=5e5, transform=transform or rj.Identity(), layout=config.layout)
    rope = rj.ModelRope({"all": spec}, ("all",) * config.layers)
    return SimpleNamespace(decoder=decoder, rope=rope, tokenizer=gguf_tokenizer(byte_level())[0], config=LENGTHS)


def expected(decoder: Any) -> dict[str, np.ndarray]:
    """The decoder's parameters under Hugging Face's names."""
    blocks, found = decoder.blocks, {"model.embed_tokens.weight": decoder.embedding[...]}
    projections = {f"self_attn.{part[0]}_proj": getattr(blocks.attention, part) for part in ("query", "key", "value")}
    projections |= {"self_attn.o_proj": blocks.attention.out}
    projections |= {f"mlp.{part}_proj": getattr(blocks.mlp, part) for part in ("gate", "up", "down")}
    for layer in range(decoder.config.layers):
        for name, dense in projections.items():
            found[f"model.layers.{layer}.{name}.weight"] = dense.kernel[...][layer].T
            if dense.bias is not None:
                found[f"model.layers.{layer}.{name}.bias"] = dense.bias[...][layer]
        found[f"model.layers.{layer}.input_layernorm.weight"] = blocks.attention_norm.scale[...][layer]
        found[f"model.layers.{layer}.post_attention_layernorm.weight"] = blocks.mlp_norm.scale[...][layer]
    found["model.norm.weight"] = decoder.norm.scale[...]
    if decoder.unembedding is not None:
        found["lm_head.weight"] = decoder.unembedding[...].T
    return {name: np.asarray(values) for name, values in found.items()}


def perturb(decoder: Any) -> None:
    """Norm scales and biases apart from their first values, which are all the same."""
    state = nnx.state(decoder, nnx.Param)
    draw = np.random.default_rng(0).standard_normal
    nnx.update(decoder, nnx.map_state(lambda _, param: param.replace(draw(param.shape, np.float32)), state))


@pytest.mark.parametrize("changes", [{}, {"tied": False, "bias": True}], ids=["tied", "untied, with biases"])
def test_tensors_come_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    written = model(**changes)
    perturb(written.decoder)
    save_gguf(written, tmp_path / "tiny.gguf")
    opened = open_gguf(tmp_path / "tiny.gguf")
    tensors = expected(written.decoder)
    assert opened.source.names() == set(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(opened.source.read(name), values, err_msg=name)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_rows_of_queries_and_keys_are_in_the_order_of_llama_cpp(tmp_path: Path) -> None:
    halves, neighbours = model(), model(layout="interleaved")
    names = {"blk.1.attn_q.weight": ("q_proj", 4), "blk.1.attn_k.weight": ("k_proj", 2)}
    for written in (halves, neighbours):
        save_gguf(written, tmp_path / "tiny.gguf")
        stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors}
        rows = expected(written.decoder)
        for name, (theirs, heads) in names.items():
            weight = rows[f"model.layers.1.self_attn.{theirs}.weight"]
            np.testing.assert_array_equal(stored[name], interleaved(weight, heads) if written is halves else weight)


@pytest.mark.parametrize(("dtype", "kind", "bits"), [("float16", "F16", 11), ("bfloat16", "BF16", 8)])
def test_narrow_matrices(tmp_path: Path, dtype: Any, kind: str, bits: int) -> None:
    written = model()
    perturb(written.decoder)
    save_gguf(written, tmp_path / "tiny.gguf", dtype=dtype)
    for tensor in gguf.GGUFReader(tmp_path / "tiny.gguf").tensors:
        assert tensor.tensor_type.name == (kind if len(tensor.shape) > 1 else "F32")
    source = open_gguf(tmp_path / "tiny.gguf").source
    for name, values in expected(written.decoder).items():
        np.testing.assert_allclose(source.read(name), values, rtol=2.0**-bits if values.ndim > 1 else 0, atol=1e-7)


TRANSFORMS = (
    rj.Identity(),
    rj.BaseChange(theta=1e6),
    rj.PositionInterpolation(factor=4.0),
    rj.YaRN(factor=4.0, original_length=256),
    rj.YaRN(factor=4.0, original_length=256, truncate=False, attention_scale=1.5),
    rj.Llama3(factor=4.0, original_length=256, low_freq_factor=1.0, high_freq_factor=4.0),
    rj.Rescale(factors=[1.0, 1.25, 2.0, 7.0]),
)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=[type(transform).__name__ for transform in TRANSFORMS])
def test_schedules_come_back(tmp_path: Path, transform: rj.FrequencyTransform) -> None:
    written = model(transform)
    save_gguf(written, tmp_path / "tiny.gguf")
    config = open_gguf(tmp_path / "tiny.gguf").config
    before, after = (rope.schedules()["all"] for rope in (written.rope, rj.from_huggingface(config)))
    assert before is not None and after is not None
    np.testing.assert_allclose(after.float64(), before.float64(), rtol=1e-6)
    np.testing.assert_allclose(after.attention_scale, before.attention_scale, rtol=1e-6)
    original = getattr(transform, "original_length", None)
    assert config["rope_parameters"].get("original_max_position_embeddings") == original


def test_sizes_and_tokenizer_come_back(tmp_path: Path) -> None:
    written = model()
    save_gguf(written, tmp_path / "tiny.gguf")
    opened = open_gguf(tmp_path / "tiny.gguf")
    assert opened.warnings == ()
    assert opened.tokenizer.to_str() == written.tokenizer.to_str()
    assert {key: opened.config[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "head_dim")} == {
        "vocab_size": len(TOKENS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "head_dim": 8,
    }
    assert opened.config["rms_norm_eps"] == 1e-5
    assert {key: opened.config[key] for key in LENGTHS} == LENGTHS
    written.tokenizer = None
    save_gguf(written, tmp_path / "tiny.gguf")
    assert open_gguf(tmp_path / "tiny.gguf").tokenizer is None


LOST: tuple[tuple[dict[str, Any], str], ...] = (
    ({"qk_norm": True}, "`qk_norm` must be False .*got True, which would be lost"),
    ({"norm": "layer"}, "`norm` must be 'rms' .*got 'layer'"),
    ({"norm_placement": "post"}, "`norm_placement` must be 'pre' .*got 'post'"),
    ({"parallel": True}, "`parallel` must be False"),
    ({"activation": "gelu"}, "`activation` must be 'silu'"),
    ({"gated": False}, "`gated` must be True"),
    ({"softcap": 30.0}, "`softcap` must be None"),
    ({"logit_softcap": 30.0}, "`logit_softcap` must be None"),
    ({"sinks": True}, "`sinks` must be False"),
    ({"scale": 0.5}, r"`scale` must be 0.35355339059327\d+ .*got 0.5"),
    ({"embed_scale": None}, r"`embed_scale` must be 1.0 .*got 5.656854"),
    ({"windows": (("all", 16),)}, "`windows` must be ()"),
    ({"positional": "none"}, "`positional` must be 'rope'"),
    ({"bias": ("qkv",)}, "`bias` must be on all projections of the attention or on none"),
)


@pytest.mark.parametrize(("changes", "message"), LOST, ids=[next(iter(changes)) for changes, _ in LOST])
def test_other_architectures_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    decoder = SimpleNamespace(config=replace(CONFIG, **changes))
    written = SimpleNamespace(decoder=decoder, rope=None, tokenizer=None, config={})
    with pytest.raises(ValueError, match=message):
        save_gguf(written, tmp_path / "tiny.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unchecked")
def test_refusals_leave_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"before")
    huge, no_length, dynamic = model(), model(), model(rj.DynamicNTK(factor=2.0, original_length=64))
    huge.decoder.embedding[...] = huge.decoder.embedding[...].at[3, 3].set(1e6)
    no_length.config = {}
    cases: tuple[tuple[Any, Any, str], ...] = (
        (huge, "float16", "`dtype` must hold the largest weight of token_embd.weight, 1e.06; got float16"),
        (
            no_length,
            "float32",
            "`max_position_embeddings` must be in the model's configuration, .*; got None",
        ),
        (dynamic, "float32", "`transform` must be static"),
        (model(), "int8", "`dtype` must be float32, float16 or bfloat16; got 'int8'"),
    )
    for written, dtype, message in cases:
        with pytest.raises(ValueError, match=message):
            save_gguf(written, path, dtype=dtype)
        assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(OSError, match="no space left"):
        save_gguf(model(), tmp_path / "tiny.gguf")
    assert list(tmp_path.iterdir()) == []
