"""A checkpoint's tokenizer as the experiment uses it: text to ids, and the one token that opens a window.

What a tokenizer adds by itself is found in the ids that it gives, since flags and configurations about it are not
reliable. It is taken off every text and put back once, in front of a window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_jax.experiment.data import Document

PROBE = "a"
UNKNOWN = ("\U000f1234", "\U00102345")  # two characters for private use, which no text and no vocabulary has


@dataclass(frozen=True, eq=False)
class Encoding:
    """Text to ids and back, without whatever the tokenizer adds.

    Args:
        tokenizer: a `tokenizers.Tokenizer`, or what encodes and decodes like one.
        vocab: ids that the model knows.
        bos: the id that the tokenizer puts in front of every text; None where it puts none.
        before, after: what it adds even when asked not to.
        unknown: the id that stands for what it has no token for; None where it has one for everything.
    """

    tokenizer: Any
    vocab: int
    bos: int | None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    unknown: int | None = None

    def ids(self, text: str) -> list[int]:
        """The ids of a text alone, nothing added."""
        found = list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        end = len(found) - len(self.after)
        added = tuple(found[: len(self.before)]) == self.before and tuple(found[end:]) == self.after
        return found[len(self.before) : end] if added else found

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids, special ones written out."""
        written: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return written

    def continued(self, before: str, text: str) -> list[int]:
        """The ids of a text where it follows another one: its start is neither a text's own nor joined with that end.

        Raises:
            ValueError: the tokenizer joins the two across their border.
        """
        start, whole = self.ids(before), self.ids(before + text)
        if whole[: len(start)] != start or len(whole) == len(start):
            raise ValueError(
                f"`tokenizer` must keep apart what follows {before[-20:]!r}; got {text[:20]!r} joined with it. "
                "Use another checkpoint, or the synthetic task."
            )
        return whole[len(start) :]


def encoding_of(tokenizer: Any, vocab: int) -> Encoding:
    """Finds out what a tokenizer adds.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; cutting and padding are switched off in it.
        vocab: ids that the model knows.

    Raises:
        ValueError: it puts more than one token in front of a text.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> encoding_of(Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), vocab=2).bos is None
        True
    """
    for switch_off in ("no_truncation", "no_padding"):
        getattr(tokenizer, switch_off, lambda: None)()
    before, after = _added(tokenizer, special=False)
    opening, _ = _added(tokenizer, special=True)
    if len(opening) > 1:
        raise ValueError(
            f"`tokenizer` must put at most one token in front of a text, to open every window with; got {opening}. "
            "Use a checkpoint with one."
        )
    plain = Encoding(tokenizer, vocab, opening[0] if opening else None, before, after)
    return replace(plain, unknown=_unknown(plain))


def _unknown(encoding: Encoding) -> int | None:
    """The id that two characters have in common which no vocabulary has."""
    one, other = (encoding.ids(character) for character in UNKNOWN)
    if not one or one != other or not encoding.text(one[-1:]).strip():
        return None
    return one[-1]


def remarks(documents: Sequence[Document], encoding: Encoding) -> tuple[str, ...]:
    """What a reader of the losses must know of the text and of its tokens.

    Args:
        documents: in tokens.
        encoding: that they are in.
    """
    if encoding.bos is None:
        said = ["the tokenizer puts no token in front of a text, so no BOS opens a window"]
    else:
        said = [f"every window opens with {encoding.text([encoding.bos])}, id {encoding.bos}, as the tokenizer does"]
    total = sum(document.tokens.size for document in documents)
    unknown = sum(int((document.tokens == encoding.unknown).sum()) for document in documents)
    if encoding.unknown is not None and unknown:
        said.append(
            f"{unknown:,} of {total:,} tokens of the text ({unknown / total:.1%}) are "
            f"{encoding.text([encoding.unknown])}: the tokenizer has no tokens for what stands there"
        )
    return (*said, *_special(documents, encoding))


def _special(documents: Sequence[Document], encoding: Encoding) -> tuple[str, ...]:
    """A line about special tokens that the text itself writes out, such as `<|endoftext|>`."""
    added: dict[int, Any] = getattr(encoding.tokenizer, "get_added_tokens_decoder", dict)()
    # Padding and the like that no text has are not named; what stands for unknown text is said already.
    special = [one for one, token in added.items() if token.special and one != encoding.unknown]
    counts = {one: sum(int((document.tokens == one).sum()) for document in documents) for one in special}
    met = [f"{encoding.text([one])} {count:,} times" for one, count in counts.items() if count]
    return (f"the text writes out special tokens, which the model reads as such: {', '.join(met)}",) if met else ()


def _added(tokenizer: Any, special: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and after a text that has no ids of its own in common with another one."""
    empty = tuple(tokenizer.encode("", add_special_tokens=special).ids)
    probe = tuple(tokenizer.encode(PROBE, add_special_tokens=special).ids)
    before = next((k for k, (one, other) in enumerate(zip(empty, probe, strict=False)) if one != other), len(empty))
    return empty[:before], empty[before:]


def encoded(documents: Sequence[Document], encoding: Encoding) -> tuple[Document, ...]:
    """The documents, read as bytes, in the tokens of a checkpoint: int32 [size].

    A whole file is encoded at once, so that no token is cut; that takes some 150 bytes of memory a character.

    Raises:
        ValueError: a file that is no UTF-8 text, or holds zero characters as UTF-16 and binary files do; ids that the
            model does not know; BOS inside a text.
    """
    return tuple(encoded_document(document, encoding, "data.source") for document in documents)


def encoded_document(document: Document, encoding: Encoding, setting: str) -> Document:
    """A document as `encoded` makes it; `setting` is what leads to its file."""
    try:
        text = document.tokens.tobytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"`{setting}` must lead to UTF-8 text for a tokenizer; got {error.reason} at byte {error.start} of "
            f"{document.name}. Convert it, or leave it out."
        ) from None
    if "\0" in text:
        raise ValueError(
            f"`{setting}` must lead to UTF-8 text for a tokenizer; got {text.count(chr(0))} zero characters in "
            f"{document.name}, which is binary, or text in UTF-16. Convert it, or leave it out."
        )
    ids = np.asarray(encoding.ids(text), np.int32)
    if ids.size and ids.max() >= encoding.vocab:
        raise ValueError(
            f"`tokenizer` must give ids below the model's vocabulary, {encoding.vocab}; got {ids.max()} in "
            f"{document.name}. Use the tokenizer that belongs to the checkpoint."
        )
    inside = 0 if encoding.bos is None else int((ids == encoding.bos).sum())
    if encoding.bos is not None and inside:
        raise ValueError(
            f"`{setting}` must not hold the token that opens every window, id {encoding.bos}; got it "
            f"{inside} times in {document.name}, written as {encoding.text([encoding.bos])!r}. Delete it there."
        )
    return Document(document.name, ids)
