"""Limits that stand beside a model and that a runtime takes for its own."""

from pathlib import Path

from rope_jax.huggingface.source import read_json


def tokenizer_limit(folder: Path, length: int) -> tuple[str, ...]:
    """A remark where vLLM would take the tokenizer's limit for the model's.

    Raises:
      ValueError: a tokenizer configuration that is no JSON object, a limit that is no number.
    """
    file = folder / "tokenizer_config.json"
    limit = read_json(file).get("model_max_length") if file.is_file() else None
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise ValueError(f"`model_max_length` must be a number; got {str(limit)[:80]!r} in {file}. Correct it.")
    if limit is None or limit >= length:
        return ()
    return (f"model_max_length is {limit:g} in tokenizer_config.json, which vLLM takes for a limit: raise it there",)
