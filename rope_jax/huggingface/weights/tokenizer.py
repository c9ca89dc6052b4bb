"""The tokenizer of a checkpoint."""

import os
from pathlib import Path
from typing import Any

from rope_jax.huggingface.weights.families import Family
from rope_jax.huggingface.weights.wording import shown, some

FILE = "tokenizer.json"


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a folder's tokenizer.json, None where there is none.

    Raises:
      ImportError: tokenizers is not installed.
      ValueError: the file is not whole.
    """
    path = folder / FILE
    # A folder, or a link to nothing, is no absence.
    if not os.path.lexists(path):
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError as missing:
        raise ImportError(f"`source` {path} needs tokenizers, which is not installed. pip install rope-jax[hf].") from (
            missing
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        # The package raises plain Exception.
        raise ValueError(
            f"`source` must hold a whole {FILE}; got {path}: {shown(str(error))}. Fetch it again."
        ) from error


def check_vocabulary(tokenizer: Any, vocab: int, family: Family) -> None:
    """Refuse a tokenizer that gives ids without a row in the embedding; fewer ids than rows are padding."""
    if tokenizer is None:
        return
    beyond = {token: i for token, i in tokenizer.get_vocab().items() if i >= vocab and token not in family.spare_tokens}
    if beyond:
        raise ValueError(
            f"`tokenizer` must give ids below `vocab_size` {vocab}; got {some(sorted(map(repr, beyond)))} from "
            f"{min(beyond.values())} on. Use the tokenizer that the model was trained with."
        )
