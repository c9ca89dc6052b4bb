"""What other runtimes make of rotary settings: the words each one needs, and a refusal where it would compute another.

fields = transformers_fields(rope, config)
command = vllm_command(rope, config, model="DIR", length=32768, trained_length=8192)
command = llama_cpp_command(rope, own, config, model="MODEL.gguf", length=32768)
"""

from rope_jax.huggingface.runtimes.composition import compose as compose
from rope_jax.huggingface.runtimes.composition import fix_length as fix_length
from rope_jax.huggingface.runtimes.composition import target_length as target_length
from rope_jax.huggingface.runtimes.composition import trained_length as trained_length
from rope_jax.huggingface.runtimes.limits import tokenizer_limit as tokenizer_limit
from rope_jax.huggingface.runtimes.llama_cpp import llama_cpp_command as llama_cpp_command
from rope_jax.huggingface.runtimes.transformers import spelled_for as spelled_for
from rope_jax.huggingface.runtimes.transformers import transformers_fields as transformers_fields
from rope_jax.huggingface.runtimes.vllm import vllm_command as vllm_command
