"""A tokenizer as the metadata of a GGUF file."""

import json
from collections.abc import Mapping
from typing import Any

from rope_jax.huggingface.weights.gguf_tokenizer import (
    BYTE,
    CONTROL,
    KEY,
    NORMAL,
    SPACE,
    SPLITS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE_WORDS,
    merges_of,
)

Json = dict[str, Any]


def tokenizer_metadata(tokenizer: Any, *, vocab: int, config: Mapping[str, Any]) -> Json:
    """The keys from which llama.cpp builds the same tokenizer.

    Args:
      tokenizer: a `tokenizers.Tokenizer`, byte-level BPE or sentencepiece's BPE, or None.
      vocab: rows of the embedding; rows without a token get an unused one.
      config: the Hugging Face configuration, for `bos_token_id`, `eos_token_id` and `pad_token_id`.

    Raises:
      ValueError: a tokenizer of another kind, a splitting that llama.cpp has no name for, merges that scores cannot
        order, more tokens than rows.
    """
    if tokenizer is None:
        return {f"{KEY}model": "none"}
    stated = json.loads(tokenizer.to_str())
    model = stated["model"]
    if model["type"] != "BPE":
        raise ValueError(f"`tokenizer` must be BPE to be written as GGUF; got {model['type']}.")
    tokens, types = _tokens(tokenizer, stated, vocab)
    # Tokenizers before 0.20 wrote merges as one string each.
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    written: Json = {f"{KEY}tokens": tokens, f"{KEY}token_type": types}
    if _splits_bytes(stated.get("pre_tokenizer")):
        written |= {f"{KEY}model": "gpt2", f"{KEY}pre": _splitting(stated)}
        written[f"{KEY}merges"] = [" ".join(merge) for merge in merges]
    else:
        written |= {f"{KEY}model": "llama", f"{KEY}add_space_prefix": _space_prefix(stated)}
        written[f"{KEY}scores"] = _scores(tokens, types, merges)
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        index = config.get(f"{name}_token_id")
        # Some configurations list several ends; a GGUF file has one.
        index = index[0] if isinstance(index, list | tuple) and index else index
        # Some say -1, or false, for none.
        if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
            if index >= vocab:
                raise ValueError(
                    f"`{name}_token_id` must be below the {vocab} rows of the embedding; got {index}. Correct it in "
                    "the model's configuration."
                )
            written[f"{KEY}{key}_token_id"] = index
    unknown = model.get("unk_token")
    if unknown is not None:
        if unknown not in tokens:
            raise ValueError(f"`tokenizer` must have its unknown token; got {unknown!r}, which has no id. Add it.")
        written[f"{KEY}unknown_token_id"] = tokens.index(unknown)
    return written | _ends(tokenizer)


def _tokens(tokenizer: Any, stated: Json, vocab: int) -> tuple[list[str], list[int]]:
    by_id = {index: token for token, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    if by_id and max(by_id) >= vocab:
        raise ValueError(f"`tokenizer` must have ids below the {vocab} rows of the embedding; got {max(by_id)}.")
    special = {entry["content"]: entry["special"] for entry in stated["added_tokens"]}
    unknown, fallback = stated["model"].get("unk_token"), stated["model"].get("byte_fallback")
    bytes_ = {f"<0x{value:02X}>" for value in range(256)} if fallback else set()
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(vocab)]

    def kind(index: int, token: str) -> int:
        if index not in by_id:
            return UNUSED
        if token == unknown:
            return UNKNOWN
        if token in special:
            return CONTROL if special[token] else USER_DEFINED
        return BYTE if token in bytes_ else NORMAL

    return tokens, [kind(index, token) for index, token in enumerate(tokens)]


def _splits_bytes(splitter: Any) -> bool:
    parts = [splitter or {}, *((splitter or {}).get("pretokenizers") or [])]
    return any(part.get("type") == "ByteLevel" for part in parts)


def _splitting(stated: Json) -> str:
    """The name of the splitting rule that this normalizer and pre-tokenizer are."""
    from tokenizers import Tokenizer, models

    whole = bool(stated["model"].get("ignore_merges"))
    for name, make in SPLITS.items():
        known = Tokenizer(models.BPE())
        normalizer, splitter = make()
        if normalizer is not None:
            known.normalizer = normalizer
        known.pre_tokenizer = splitter
        form = json.loads(known.to_str())
        same = all(_bare(form[part]) == _bare(stated[part]) for part in ("normalizer", "pre_tokenizer"))
        if same and (name in WHOLE_WORDS) == whole:
            return name
    raise ValueError(
        f"`tokenizer` must split text by a rule that llama.cpp has a name for ({', '.join(SPLITS)}); got "
        f"{json.dumps(stated['pre_tokenizer'])}, normalizer {json.dumps(stated['normalizer'])}, ignore_merges {whole}."
    )


def _bare(part: Any) -> Any:
    """A part without what only moves offsets, and without sequences of one."""
    if isinstance(part, list):
        return [_bare(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    inner = part.get("pretokenizers") or part.get("normalizers")
    if inner is not None and len(inner) == 1:
        return _bare(inner[0])
    return {key: _bare(value) for key, value in part.items() if key != "trim_offsets"}


def _space_prefix(stated: Json) -> bool:
    """Whether a space comes before the text; sentencepiece's other rules are refused.

    Metaspace puts none before a text that begins with one; sentencepiece itself and llama.cpp do.
    """
    normalizer, splitter = _bare(stated["normalizer"]), _bare(stated["pre_tokenizer"])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    if splitter is None and normalizer == {"type": "Sequence", "normalizers": [prepend, replace]}:
        return True
    if splitter is None and normalizer == replace:
        return False
    if normalizer is None and splitter is not None and splitter.get("type") == "Metaspace":
        scheme, split = splitter.get("prepend_scheme"), splitter.get("split", True)
        if splitter.get("replacement") == SPACE and scheme in ("always", "first", "never") and not split:
            return scheme != "never"
    raise ValueError(
        "`tokenizer` must be byte-level, or treat spaces as sentencepiece does, to be written as GGUF; got normalizer "
        f"{json.dumps(stated['normalizer'])}, pre-tokenizer {json.dumps(stated['pre_tokenizer'])}."
    )


def _scores(tokens: list[str], types: list[int], merges: list[tuple[str, ...]]) -> list[float]:
    """Sentencepiece's scores: the sooner a token is made, the higher."""
    made = ["".join(merge) for merge in merges]
    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(made))}
    scores = [-float(ranks.get(token, len(ranks))) for token in tokens]
    in_order = [ranks[token] for token in made]
    # A token's own merges may stand in any order: which of them applies first depends on the text alone.
    if set(merges) != set(merges_of(tokens, scores, types)) or in_order != sorted(in_order):
        raise ValueError(
            "`tokenizer` must merge every pair that makes a token, in the order of the tokens, as sentencepiece does; "
            "got merges that no scores give. They would be lost."
        )
    return scores


def _ends(tokenizer: Any) -> Json:
    """Which tokens are put around a sequence, seen from one."""
    bare, whole = (tokenizer.encode("a", add_special_tokens=added).ids for added in (False, True))
    # The same tokens inside: what is before and after them was added.
    found = [at for at in range(len(whole) - len(bare) + 1) if bare and whole[at : at + len(bare)] == bare]
    if not found:
        raise ValueError(
            f'`tokenizer` must encode "a" alike with its ends and without; got {whole} and {bare}. '
            "Save the model in its Hugging Face form."
        )
    start = found[0]
    before, after = whole[:start], whole[start + len(bare) :]
    if len(before) > 1 or len(after) > 1:
        raise ValueError(f"`tokenizer` must add at most one token at each end of a sequence; got {before} and {after}.")
    written: Json = {f"{KEY}add_bos_token": bool(before), f"{KEY}add_eos_token": bool(after)}
    written |= {f"{KEY}bos_token_id": before[0]} if before else {}
    return written | ({f"{KEY}eos_token_id": after[0]} if after else {})
