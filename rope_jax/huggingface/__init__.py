"""Hugging Face configurations: read into a ModelRope, and written from one.

rope = from_huggingface("path/to/model")
config |= to_huggingface(rope)
"""

from rope_jax.huggingface.config import from_huggingface as from_huggingface
from rope_jax.huggingface.export import to_huggingface as to_huggingface
from rope_jax.logit_scales import Llama4QueryScale as Llama4QueryScale
from rope_jax.logit_scales import Mistral3QueryScale as Mistral3QueryScale
