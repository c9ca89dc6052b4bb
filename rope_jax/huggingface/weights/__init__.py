"""Weights of Hugging Face checkpoints and GGUF files: read into a decoder, and written from one.

model = load_pretrained("path/to/model")
save_pretrained(replace(model, rope=stretched), "path/to/stretched")
"""

from rope_jax.huggingface.weights.checkpoint import Outline as Outline
from rope_jax.huggingface.weights.checkpoint import digest as digest
from rope_jax.huggingface.weights.checkpoint import load_tokenizer as load_tokenizer
from rope_jax.huggingface.weights.checkpoint import outline as outline
from rope_jax.huggingface.weights.load import load_pretrained as load_pretrained
from rope_jax.huggingface.weights.pretrained import Pretrained as Pretrained
from rope_jax.huggingface.weights.save import save_pretrained as save_pretrained
