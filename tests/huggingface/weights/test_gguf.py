"""Reading GGUF files: weights, sizes, quantisation, split files, and what is refused."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from rope_jax.huggingface.weights import outline
from rope_jax.huggingface.weights.gguf import open_gguf
from tests.huggingface.weights.gguf_files import EMBED, HEAD_DIM, HEADS, KV_HEADS, hugging_face_weights, write_file

BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_of_hugging_face(tmp_path: Path, tied: bool) -> None:
    weights = hugging_face_weights(tied=tied, biases=() if tied else BIASES)
    opened = open_gguf(write_file(tmp_path / "tiny.gguf", weights))
    assert opened.source.names() == set(weights)
    for name, values in weights.items():
        read = opened.source.read(name)
        assert opened.source.shape(name) == values.shape
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, values, err_msg=name)
    config = opened.config
    assert [config[key] for key in ("tie_word_embeddings", "attention_bias", "mlp_bias")] == [tied, not tied, not tied]


def test_sizes_become_a_configuration(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
    config = open_gguf(write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata=ends)).config
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_a_head_wider_than_its_share(tmp_path: Path) -> None:
    weights = hugging_face_weights()
    half = {"llama.attention.head_count": HEADS // 2, "llama.attention.head_count_kv": KV_HEADS // 2}
    wide = half | {"llama.rope.dimension_count": 2 * HEAD_DIM}
    lengths = {"llama.attention.key_length": 2 * HEAD_DIM, "llama.attention.value_length": 2 * HEAD_DIM}
    opened = open_gguf(write_file(tmp_path / "wide.gguf", weights, metadata=wide | lengths))
    assert (opened.config["head_dim"], opened.config["num_attention_heads"]) == (16, 2)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantised_matrices(tmp_path: Path, kind: str) -> None:
    weights = hugging_face_weights()
    source = open_gguf(write_file(tmp_path / "tiny.gguf", weights, matrices=kind)).source
    type_ = gguf.GGMLQuantizationType[kind]
    for name, values in weights.items():
        # Blocks lie along a row, so moving rows and rounding them can be exchanged.
        expected = dequantize(quantize(values, type_), type_) if values.ndim > 1 else values
        np.testing.assert_array_equal(source.read(name), expected, err_msg=name)


def test_queries_and_keys_are_reordered_and_nothing_else(tmp_path: Path) -> None:
    weights = hugging_face_weights()
    path = write_file(tmp_path / "tiny.gguf", weights)
    stored = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    name = "model.layers.1.self_attn.{}_proj.weight"
    np.testing.assert_array_equal(stored["blk.1.attn_v.weight"], weights[name.format("v")])
    # Rows 0, 1, 2 of the file: first of the first half, first of the second, second of the first.
    np.testing.assert_array_equal(stored["blk.1.attn_q.weight"][:3], weights[name.format("q")][[0, HEAD_DIM // 2, 1]])


def test_split_files_are_read_whole(tmp_path: Path) -> None:
    weights = hugging_face_weights()
    write_file(tmp_path / "tiny.gguf", weights, split_max_tensors=6)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 4
    source = open_gguf(parts[0]).source
    for name, values in weights.items():
        np.testing.assert_array_equal(source.read(name), values)
    with pytest.raises(ValueError, match=r"must be the first part of a split file.*part 2 of 4"):
        open_gguf(parts[1])
    parts[2].unlink()
    with pytest.raises(FileNotFoundError, match=r"with all its parts; .*00003-of-00004.gguf is missing"):
        open_gguf(parts[0])


def test_truncated_files(tmp_path: Path) -> None:
    whole = write_file(tmp_path / "tiny.gguf", hugging_face_weights()).read_bytes()
    cut = tmp_path / "cut.gguf"
    # In the header, among the keys, among the tensors' places, in the first and in the last tensor.
    for length in (10, 200, 1200, len(whole) // 2, len(whole) - 100):
        cut.write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=r"must be a whole GGUF file; got .*cut.gguf, which is truncated or damaged"
        ):
            open_gguf(cut)


def test_text_that_is_none(tmp_path: Path) -> None:
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata={"llama.rope.scaling.type": "linear"})
    path.write_bytes(path.read_bytes().replace(b"linear", b"l\xffnear"))
    with pytest.raises(
        ValueError, match=r"must hold metadata that can be read; got .*damaged \('utf-8' codec"
    ) as caught:
        open_gguf(path)
    assert type(caught.value) is ValueError


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("split.no", "x", "`split.no` must be an integer; got 'x'"),
        ("split.no", 7, "must be the first part of a split file.*got .*, part 8 of 1"),
        ("split.count", [1], r"`split.count` must be an integer; got \[1\]"),
        ("split.count", 2, "must be the first part of a split file.*got .*, part 1 of 2"),
        ("split.tensors.count", True, "`split.tensors.count` must be an integer; got True"),
        ("split.tensors.count", 3, "`path` must hold all 3 tensors in its parts; got 20"),
        ("llama.attention.head_count", "four", "`llama.attention.head_count` must be one positive integer .*'four'"),
        ("llama.attention.head_count", [4, 2], "`llama.attention.head_count` must be one positive integer"),
        ("llama.rope.freq_base", "far", "`llama.rope.freq_base` must be a number; got 'far'"),
        ("llama.rope.scaling.factor", True, "`llama.rope.scaling.factor` must be a number; got True"),
        ("llama.rope.scaling.factor", float("nan"), "`llama.rope.scaling.factor` must be finite; got nan"),
        ("llama.rope.scaling.attn_factor", "x", "`llama.rope.scaling.attn_factor` must be a number; got 'x'"),
        ("llama.rope.scale_linear", [1.0], r"`llama.rope.scale_linear` must be a number; got \[1.0\]"),
        ("llama.rope.scaling.yarn_ext_factor", "x", "`llama.rope.scaling.yarn_ext_factor` must be a number; got 'x'"),
        ("tokenizer.ggml.eos_token_id", 1.5, "`tokenizer.ggml.eos_token_id` must be an integer; got 1.5"),
        ("llama.custom", ["x" * 3000], r"`llama.custom` must be a setting of plain.*\.\.\. \(3004 characters\)"),
    ],
)
def test_values_of_another_kind(tmp_path: Path, key: str, value: Any, message: str) -> None:
    for kind in ("linear", "yarn"):
        path = write_file(
            tmp_path / f"{kind}.gguf", hugging_face_weights(), metadata={"llama.rope.scaling.type": kind, key: value}
        )
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            open_gguf(path)
        assert "\n" not in str(caught.value)


def test_more_layers_than_tensors_are_refused_before_they_are_counted_out(tmp_path: Path) -> None:
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata={"llama.block_count": 2**32 - 1})
    with pytest.raises(
        ValueError, match="`num_hidden_layers` must be at most the 20 tensors of the checkpoint; got 42949"
    ):
        outline(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"output.weight": np.ones((40, EMBED), np.int8)},
            r"must hold floating or quantised tensors; got I8 for output\.weight in",
        ),
        (
            {"rope_freqs.weight": np.ones((2, 2), np.float32)},
            r"`rope_freqs.weight` must be one .*got shape \(2, 2\) of F32",
        ),
        ({"rope_freqs.weight": np.ones(4, np.int32)}, r"`rope_freqs.weight` must be one floating number .*of I32"),
        ({"a\nb": np.ones(4, np.float32)}, r"must hold the tensors of a plain Llama model; got 'a\\nb' in"),
    ],
)
def test_tensors_of_another_kind(tmp_path: Path, tensors: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_gguf(write_file(tmp_path / "tiny.gguf", hugging_face_weights(), tensors=tensors))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip file", b"{}"])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="must be a GGUF file, which begins with those four letters; got"):
        open_gguf(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none.gguf is missing"):
        open_gguf(tmp_path / "none.gguf")


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"llama.expert_count": 8}, "`llama.expert_count` must be a setting of plain Llama models; got 8"),
    ({"llama.attention.sliding_window": 512}, "`llama.attention.sliding_window` must be a setting of plain"),
    ({"llama.attention.causal": False}, "`llama.attention.causal` must be a setting of plain Llama"),
    ({"llama.attention.value_length": 4}, "`llama.attention.value_length` must be the key length 8; got 4"),
    ({"llama.attention.head_count": [4, 2]}, "`llama.attention.head_count` must be one positive integer for all"),
    ({"llama.block_count": None}, "`llama.block_count` must be in the file's metadata; got none"),
    ({"llama.vocab_size": 41}, "`llama.vocab_size` must be the rows of the embedding, 40; got 41"),
)


@pytest.mark.parametrize(("metadata", "message"), REFUSED, ids=[next(iter(keys)) for keys, _ in REFUSED])
def test_settings_of_other_models(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_gguf(write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata=metadata))


def test_settings_that_change_nothing(tmp_path: Path) -> None:
    inert = {"llama.expert_count": 0, "llama.attention.causal": True, "llama.attention.head_count": [HEADS, HEADS]}
    config = open_gguf(write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata=inert)).config
    assert config["num_attention_heads"] == HEADS


def test_other_architectures(tmp_path: Path) -> None:
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(), architecture="qwen2")
    with pytest.raises(ValueError, match=r"`general.architecture` must be .llama.*got 'qwen2'"):
        open_gguf(path)


def test_tensors_of_other_models(tmp_path: Path) -> None:
    weights, extra = hugging_face_weights(), np.zeros((EMBED,), np.float32)
    path = write_file(tmp_path / "tiny.gguf", weights, tensors={"blk.0.attn_q_norm.weight": extra})
    with pytest.raises(ValueError, match=r"must hold the tensors of a plain Llama model; got blk.0.attn_q_norm.weight"):
        open_gguf(path)


def test_biases_on_some_projections(tmp_path: Path) -> None:
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(biases=BIASES[:3]))
    with pytest.raises(ValueError, match=r"`blk.0.attn_output.bias` must be there beside `blk.0.attn_q.bias`"):
        open_gguf(path)
