"""The tokenizer in a GGUF file's metadata as a `tokenizers.Tokenizer`."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rope_jax.huggingface.weights.wording import brief

KEY = "tokenizer.ggml."
# Types of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "▁"
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# Contractions in either case, words with one mark before them, digits, marks up to line ends, white space.
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _smollm() -> tuple[Any, Any]:
    from tokenizers import pre_tokenizers as pre

    return None, pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])


def _gpt2() -> tuple[Any, Any]:
    from tokenizers import pre_tokenizers as pre

    return None, pre.ByteLevel(add_prefix_space=False)


def _split(*patterns: str) -> Any:
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as pre

    splits = [pre.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre.Sequence([*splits, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _llama3() -> tuple[Any, Any]:
    return None, _split(CL100K % "{1,3}")


def _qwen2() -> tuple[Any, Any]:
    from tokenizers import normalizers

    return normalizers.NFC(), _split(CL100K % "")


def _default() -> tuple[Any, Any]:
    return None, _split(r"[\p{P}\$\+<=>\^~\|]+", WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")


# `tokenizer.ggml.pre`: what makes the normalizer and the pre-tokenizer.
SPLITS: Mapping[str, Callable[[], tuple[Any, Any]]] = MappingProxyType(
    {
        "smollm": _smollm,
        "llama-bpe": _llama3,
        "gpt-2": _gpt2,
        "qwen2": _qwen2,
        # Other names of the same; "default" is what llama.cpp does where the splitting was not recorded.
        "llama3": _llama3,
        "llama-v3": _llama3,
        "default": _default,
    }
)
# A word that is itself a token is not taken apart, and a sequence begins with the first token, unless stated.
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3")


def gguf_tokenizer(metadata: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The tokenizer and warnings about it: byte-level BPE ("gpt2") or sentencepiece BPE ("llama").

    Text is split as `tokenizer.ggml.pre` says; control tokens are special; the first and last token of a sequence are
    added where `add_bos_token` and `add_eos_token` say so (absent: by the rule of the kind).

    Raises:
      ValueError: no tokenizer, another kind, a splitting that is not known, merges of tokens that do not exist.
    """
    try:
        from tokenizers import AddedToken
    except ImportError as missing:
        raise ImportError("it needs the package tokenizers. pip install rope-jax[hf].") from missing
    kind = metadata.get(f"{KEY}model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f'`{KEY}model` must be "gpt2" (byte-level BPE) or "llama" (sentencepiece); got {kind!r}.')
    tokens = _list(metadata, "tokens", str)
    types = _list(metadata, "token_type", int) or [NORMAL] * len(tokens)
    if len(set(tokens)) != len(tokens) or len(types) != len(tokens):
        raise ValueError(
            f"`{KEY}tokens` must be different from each other, with a type each; got {len(tokens)} tokens, "
            f"{len(set(tokens))} different ones, {len(types)} types."
        )
    tokenizer, warnings = (_byte_level if kind == "gpt2" else _sentencepiece)(metadata, tokens, types)
    added = {
        special: [
            AddedToken(token, normalized=False, special=special)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in ((UNKNOWN, CONTROL) if special else (USER_DEFINED,))
        ]
        for special in (True, False)
    }
    tokenizer.add_special_tokens(added[True])
    tokenizer.add_tokens(added[False])
    _add_ends(tokenizer, metadata, tokens, kind)
    return tokenizer, warnings


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """A list of entries of one kind, empty where it is absent."""
    value = metadata.get(f"{KEY}{name}", [])
    if not isinstance(value, list) or not all(isinstance(entry, kind) for entry in value):
        raise ValueError(f"`{KEY}{name}` must be a list of {kind.__name__}; got {brief(value)}. Fetch the file again.")
    return value


def _switch(metadata: Mapping[str, Any], name: str, absent: bool) -> bool:
    value = metadata.get(f"{KEY}{name}", absent)
    if not isinstance(value, bool):
        raise ValueError(f"`{KEY}{name}` must be true or false; got {brief(value)}. Fetch the file again.")
    return value


def _is_token(index: Any, tokens: Sequence[str]) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(tokens)


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tuple[Any, tuple[str, ...]]:
    from tokenizers import Tokenizer, decoders, models

    name = metadata.get(f"{KEY}pre", "default")
    warned = f"`{KEY}pre` is absent: text is split by the default rule of llama.cpp."
    if not isinstance(name, str) or name not in SPLITS:
        raise ValueError(
            f"`{KEY}pre` must be one of {sorted(SPLITS)}; got {brief(name)}, whose splitting is not known here."
        )
    merges = [tuple(merge.split(" ")) for merge in _list(metadata, "merges", str)]
    known = set(tokens)
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= known:
            raise ValueError(f"`{KEY}merges` must be pairs of tokens that make a token; got {' '.join(merge)!r}.")
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=name in WHOLE_WORDS))
    normalizer, splitter = SPLITS[name]()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, () if f"{KEY}pre" in metadata else (warned,)


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> tuple[Any, tuple[str, ...]]:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _list(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise ValueError(f"`{KEY}scores` must be one for each of {len(tokens)} tokens; got {len(scores)}.")
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = metadata.get(f"{KEY}unknown_token_id")
    if unknown is not None and not _is_token(unknown, tokens):
        raise ValueError(f"`{KEY}unknown_token_id` must be a token; got {brief(unknown)}. Fetch the file again.")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges_of(tokens, scores, types),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    prefix = _switch(metadata, "add_space_prefix", True)
    spaces = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer, ()


def merges_of(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """The merges that sentencepiece's scores mean: every way to make a token of two, the best token first."""
    pieces = {token for token, type_ in zip(tokens, types, strict=True) if type_ in (NORMAL, USER_DEFINED)}
    ranked = sorted(range(len(tokens)), key=lambda index: (-scores[index], index))
    return [
        (token[:cut], token[cut:])
        for token in (tokens[index] for index in ranked if tokens[index] in pieces)
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]


def _add_ends(tokenizer: Any, metadata: Mapping[str, Any], tokens: list[str], kind: str) -> None:
    from tokenizers import processors

    begins = kind == "llama" or metadata.get(f"{KEY}pre", "") in WHOLE_WORDS
    ends: list[tuple[str, int] | None] = []
    for name, absent in (("bos", begins), ("eos", False)):
        added = _switch(metadata, f"add_{name}_token", absent)
        index = metadata.get(f"{KEY}{name}_token_id")
        if not added:
            ends.append(None)
        elif isinstance(index, int) and _is_token(index, tokens):
            ends.append((tokens[index], index))
        else:
            raise ValueError(f"`{KEY}{name}_token_id` must be a token, since `add_{name}_token` holds; got {index}.")
    first, last = ends
    if first is None and last is None:
        return
    template = [*([first[0]] if first else []), "$A", *([last[0]] if last else [])]
    pair = [*([first[0]] if first else []), "$A", "$B", *([last[0]] if last else [])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=pair, special_tokens=[end for end in dict.fromkeys(ends) if end]
    )
