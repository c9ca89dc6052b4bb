"""Tokenizers as the metadata of GGUF files: what comes back, and what would be lost."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="the hf extra is not installed: tokenizers")

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from rope_jax.huggingface.weights.gguf_tokenizer import gguf_tokenizer
from rope_jax.huggingface.weights.gguf_vocab import tokenizer_metadata
from tests.huggingface.weights.test_gguf_tokenizer import HARD, KEY, byte_level, sentencepiece

METADATA = (
    *(byte_level(pre=name, add_bos_token=True) for name in ("smollm", "llama-bpe", "gpt-2", "qwen2", "default")),
    *(byte_level(add_eos_token=True), sentencepiece(), sentencepiece(add_bos_token=True, add_space_prefix=False)),
)


@pytest.mark.parametrize("metadata", METADATA, ids=range(len(METADATA)))
def test_metadata_comes_back(metadata: dict[str, Any]) -> None:
    tokenizer, _ = gguf_tokenizer(metadata)
    ends = {"bos_token_id": metadata[f"{KEY}bos_token_id"], "eos_token_id": metadata[f"{KEY}eos_token_id"]}
    written = tokenizer_metadata(tokenizer, vocab=len(metadata[f"{KEY}tokens"]) + 1, config=ends)
    # A row without a token has an unused one.
    assert written[f"{KEY}tokens"].pop() == f"[PAD{len(metadata[f'{KEY}tokens'])}]"
    assert written[f"{KEY}token_type"].pop() == 5
    assert f"{KEY}scores" not in metadata or written[f"{KEY}scores"].pop() <= -4
    for key, value in metadata.items():
        if key != f"{KEY}scores":
            assert written[key] == value, key
    assert json.loads(gguf_tokenizer(written)[0].to_str()) == json.loads(tokenizer.to_str())


def test_a_tokenizer_of_hugging_face_comes_back(shared: Path) -> None:
    folder = shared / "data" / "stories260K"
    if not folder.is_dir():
        pytest.skip("reference data: no stories260K")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours, _ = gguf_tokenizer(tokenizer_metadata(theirs, vocab=512, config={}))
    text = (shared / "data" / "text" / "tinystories_v2_10k_lines.txt").read_text(encoding="utf-8")[:20_000]
    for part in (text, *HARD):
        # Before a text that begins with a space, Metaspace puts none and sentencepiece one more.
        assert ours.encode(part).ids == theirs.encode(" " + part if part.startswith(" ") else part).ids
        assert ours.decode(ours.encode(part).ids) == part


def changed(**parts: Any) -> Any:
    tokenizer, _ = gguf_tokenizer(byte_level())
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def test_tokenizers_that_would_be_lost() -> None:
    splitters = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel()])
    two = processors.TemplateProcessing(
        single="<|begin|> <|end|> $A", special_tokens=[("<|begin|>", 0), ("<|end|>", 1)]
    )
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    unordered = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "ba": 3}, [("b", "a")]))
    unordered.normalizer, unordered.decoder = normalizers.Replace(" ", "▁"), decoders.Fuse()
    for tokenizer, message in (
        (words, "must be BPE to be written as GGUF; got WordLevel"),
        (changed(pre_tokenizer=splitters), "must split text by a rule that llama.cpp has a name for"),
        (changed(pre_tokenizer=None), "must be byte-level, or treat spaces as sentencepiece does"),
        (changed(normalizer=normalizers.Lowercase()), "must split text by a rule that llama.cpp has a name for"),
        (changed(post_processor=two), r"must add at most one token at each end of a sequence; got \[0, 1\]"),
        (unordered, "must merge every pair that makes a token"),
    ):
        with pytest.raises(ValueError, match=f"`tokenizer` {message}"):
            tokenizer_metadata(tokenizer, vocab=400, config={})
    with pytest.raises(ValueError, match="`tokenizer` must have ids below the 9 rows of the embedding; got"):
        tokenizer_metadata(changed(), vocab=9, config={})
    with pytest.raises(ValueError, match="`pad_token_id` must be below the 400 rows of the embedding; got 400"):
        tokenizer_metadata(changed(), vocab=400, config={"pad_token_id": 400})
    mute = Tokenizer(models.BPE({"b": 0}, []))
    mute.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(ValueError, match='`tokenizer` must encode "a" alike with its ends and without; got'):
        tokenizer_metadata(mute, vocab=400, config={})
    unnamed = Tokenizer(models.BPE({"a": 0}, [], unk_token="<unk>"))
    unnamed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.raises(ValueError, match="`tokenizer` must have its unknown token; got '<unk>'"):
        tokenizer_metadata(unnamed, vocab=400, config={})


@pytest.mark.parametrize("none", [-1, False, True, None, 1.0, []])
def test_ids_that_mean_none_are_left_out(none: Any) -> None:
    keys = tokenizer_metadata(changed(), vocab=400, config={"pad_token_id": none, "eos_token_id": [1, 2]})
    assert f"{KEY}padding_token_id" not in keys and keys[f"{KEY}eos_token_id"] == 1
