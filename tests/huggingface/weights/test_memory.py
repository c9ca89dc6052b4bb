"""Loading takes little more memory than the parameters have."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

from safetensors.numpy import save_file

from tests.source import ROOT

# 135 million parameters.
EMBED, MLP, KV, LAYERS, VOCAB = 576, 1536, 192, 30, 49152
SHAPES = {
    **{"self_attn.q_proj": (EMBED, EMBED), "self_attn.k_proj": (KV, EMBED), "self_attn.v_proj": (KV, EMBED)},
    **{"self_attn.o_proj": (EMBED, EMBED), "mlp.gate_proj": (MLP, EMBED), "mlp.up_proj": (MLP, EMBED)},
    **{"mlp.down_proj": (EMBED, MLP), "input_layernorm": (EMBED,), "post_attention_layernorm": (EMBED,)},
}
MEASURE = """
import sys
import jax, numpy, flax
import rope_jax

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

jax.numpy.zeros(1).block_until_ready()
before = kilobytes("VmRSS")
model = rope_jax.load_pretrained(sys.argv[1])
print((kilobytes("VmHWM") - before) * 1024)
"""


@pytest.mark.slow
def test_peak_of_memory_while_loading(tmp_path: Path) -> None:
    if not Path("/proc/self/status").is_file():
        pytest.skip("this system does not say how much memory a process used")
    layer = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    tensors = {f"model.layers.{i}.{name}": tensor for i in range(LAYERS) for name, tensor in layer.items()}
    tensors["model.embed_tokens.weight"] = np.ones((VOCAB, EMBED), np.float32)
    tensors["model.norm.weight"] = np.ones(EMBED, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    config = {
        **{"model_type": "llama", "hidden_size": EMBED, "intermediate_size": MLP, "num_hidden_layers": LAYERS},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": VOCAB, "tie_word_embeddings": True},
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    size = (tmp_path / "model.safetensors").stat().st_size
    assert int(done.stdout) <= 1.3 * size
