"""The tokens that a recipe speaks of: bytes, or those of a tokenizer with what opens and closes its documents."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rope_jax.experiment.data import Document
from rope_jax.experiment.encoding import Encoding, encoded_document, encoding_of
from rope_jax.experiment.recipe.settings import RecipeConfig
from rope_jax.huggingface.weights.locate import GGUF
from rope_jax.huggingface.weights.tokenizer import FILE, read_tokenizer

BYTES = 256
ROLES = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Token ids and what frames a document.

    Args:
        size: above every id.
        bos: the id in front of every document, where the tokenizer puts one there by itself.
        end: the id behind every document.
        encoding: text to ids; None for bytes.
    """

    size: int = BYTES
    bos: int | None = None
    end: int | None = None
    encoding: Encoding | None = None

    def encoded(self, document: Document) -> Document:
        """A document, read as bytes, in these tokens, without what frames it.

        Raises:
            ValueError: what `encoding.encoded` refuses.
        """
        if self.encoding is None:
            return document
        return encoded_document(document, self.encoding, "data.sources")


def read_vocabulary(recipe: RecipeConfig) -> Vocabulary:
    """The vocabulary that a recipe names.

    Raises:
        ValueError: no tokenizer there, a damaged file beside it, or an end token that it does not have.

    Example:
        >>> read_vocabulary(RecipeConfig()).size
        256
    """
    if not recipe.tokenizer:
        return Vocabulary()
    named = Path(recipe.tokenizer)
    place = named.parent if named.name == FILE else named
    tokenizer, closing = _of_gguf(place) if place.suffix == GGUF else (read_tokenizer(place), _closing(place))
    if tokenizer is None:
        raise ValueError(
            f"`data.tokenizer` must be a folder with a {FILE}, or that file; got {recipe.tokenizer!r}, where none is. "
            "Name the folder of a checkpoint, or leave it out to read bytes."
        )
    # What a document writes out is text, whatever it looks like: <s> is a tag of HTML as well.
    tokenizer.encode_special_tokens = True
    # A vocabulary may have gaps.
    encoding = encoding_of(tokenizer, max(tokenizer.get_vocab().values(), default=-1) + 1)
    name = closing if recipe.end_token == "auto" else recipe.end_token
    end = None if name in (None, "none") else tokenizer.token_to_id(name)
    if name not in (None, "none") and end is None:
        raise ValueError(
            f"`data.end_token` must be a token of {place if place.is_file() else place / FILE}; got {name!r}. "
            'Name one that it has, or write "none".'
        )
    return Vocabulary(encoding.vocab, encoding.bos, end, encoding)


def _of_gguf(file: Path) -> tuple[Any, str | None]:
    """The tokenizer in a GGUF file, and its end token."""
    from rope_jax.huggingface.weights.gguf import open_gguf

    found = open_gguf(file)
    index = found.config.get("eos_token_id")
    known = found.tokenizer is not None and index is not None
    return found.tokenizer, found.tokenizer.id_to_token(index) if known else None


def _closing(folder: Path) -> str | None:
    """The end token's text as the files beside a tokenizer give it."""
    for name in ROLES:
        path = folder / name
        if path.is_file():
            found = _end_token(path)
            if found is not None:
                return found
    return None


def _end_token(path: Path) -> str | None:
    """The text of the end token that a file names."""
    try:
        roles = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"`data.tokenizer` must lie beside a whole {path.name}; got {path}: {error}. Fetch it again."
        ) from None
    token = roles.get("eos_token") if isinstance(roles, dict) else roles
    found = token.get("content") if isinstance(token, dict) else token
    if not isinstance(roles, dict) or not isinstance(found, str | None):
        raise ValueError(
            f"`data.tokenizer` must lie beside a {path.name} whose eos_token is a text; got {found!r} in {path}. "
            "Correct it there."
        )
    return found
