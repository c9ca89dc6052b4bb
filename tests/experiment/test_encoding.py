"""A checkpoint's tokenizer: one BOS at the front of every window, the same targets with it and without."""

import dataclasses

import numpy as np
import pytest

from rope_jax.experiment import evaluate
from rope_jax.experiment.config import DataConfig, EvaluateConfig, ExperimentConfig, ModelConfig, TrainConfig
from rope_jax.experiment.data import Document, opened
from rope_jax.experiment.encoding import encoded, encoding_of, remarks
from rope_jax.experiment.tasks import make_task
from tests.experiment.vocabularies import BOS, EOS, FIRST, VOCAB, Characters

TEXT = "".join(np.random.default_rng(0).choice(list("abcdefgh ."), size=900))
# Where BOS comes from: the flag, the flag ignored, with EOS behind, and nowhere.
WITH = [{"asked": [BOS]}, {"always": [BOS]}, {"asked": [BOS], "ends": [EOS]}, {"always": [BOS], "asked": []}]


def document(text: str) -> Document:
    return Document("a.txt", np.frombuffer(text.encode(), np.uint8))


def task(tmp_path, finetune=0, **added):
    """Text of a checkpoint: windows of 16 and 32 tokens, their tails of 4 scored."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    config = ExperimentConfig(
        name="a",
        data=DataConfig(source=str(path), held_out_tokens=300),
        model=ModelConfig(checkpoint="somewhere"),
        train=TrainConfig(length=16, steps=0),
        evaluate=EvaluateConfig(windows=5),
    )
    config = dataclasses.replace(config, finetune=dataclasses.replace(config.finetune, steps=finetune))
    return make_task(config, 0, 32, encoding_of(Characters(**added), VOCAB))


@pytest.mark.parametrize("added", WITH)
def test_bos_is_found_in_the_ids_and_taken_off_the_text(added):
    encoding = encoding_of(Characters(**added), VOCAB)
    assert encoding.bos == BOS
    assert encoding.ids("ab") == [FIRST + 97, FIRST + 98]
    (read,) = encoded([document("ab")], encoding)
    assert read.tokens.dtype == np.int32
    assert read.tokens.tolist() == [FIRST + 97, FIRST + 98]


@pytest.mark.parametrize("added", [{}, {"ends": [EOS]}])
def test_a_tokenizer_without_one_has_none(added):
    encoding = encoding_of(Characters(**added), VOCAB)
    assert encoding.bos is None
    assert encoding.ids("a") == [FIRST + 97]


@pytest.mark.parametrize("added", WITH)
@pytest.mark.parametrize("length", [8, 16, 32])
def test_every_window_holds_bos_once_in_front_and_the_same_targets_as_without(tmp_path, added, length):
    with_bos, without = task(tmp_path, **added), task(tmp_path)
    here, there = with_bos.questions(length), without.questions(length)
    assert here.tokens.shape == there.tokens.shape == (5, length + 1)
    assert np.array_equal(np.argwhere(here.tokens == BOS), [[row, 0] for row in range(5)])
    assert BOS not in there.tokens
    # Targets are all but the first token: neither number nor ids depend on BOS, and those of any length end alike.
    assert np.array_equal(here.tokens[:, 1:], there.tokens[:, 1:])
    assert np.array_equal(here.tokens[:, -8:], with_bos.questions(32).tokens[:, -8:])
    assert np.array_equal(here.weights, there.weights)


def test_truncated_and_training_windows_hold_it_once_too(tmp_path):
    asked = task(tmp_path, asked=[BOS])
    windows = opened(evaluate.truncation_windows(asked.questions(32).tokens, 16, 4), asked.bos)
    batch = task(tmp_path, finetune=3, asked=[BOS]).train_batch(0, 16, 4).tokens
    for tokens in (windows, batch):
        assert np.array_equal(np.argwhere(tokens == BOS), [[row, 0] for row in range(len(tokens))])
    assert windows.shape == (5 * 5, 17)


@pytest.mark.parametrize(("finetune", "trained", "first"), [(0, 0, 86), (3, 600, 626)])
def test_without_fine_tuning_all_text_is_held_out(tmp_path, finetune, trained, first):
    asked = task(tmp_path, finetune=finetune)
    assert sum(document.tokens.size for document in asked.train) == trained
    window = "".join(chr(one - FIRST) for one in asked.questions(32).tokens[0].tolist())
    assert TEXT.index(window) == first


@pytest.mark.parametrize(
    ("content", "added", "message"),
    [
        (b"caf\xe9", {}, r"UTF-8 text .* at byte 3 of a.txt\. Convert"),
        ("é".encode(), {}, r"below the model's vocabulary, 131; got 236 in a.txt"),
        (b"a\x7e", {"asked": [FIRST + 0x7E]}, r"opens every window, id 129; got it 1 times in a.txt, written as '~'"),
    ],
)
def test_text_that_does_not_fit_is_refused_by_its_file(content, added, message):
    encoding = encoding_of(Characters(**added), VOCAB)
    with pytest.raises(ValueError, match=message):
        encoded([Document("a.txt", np.frombuffer(content, np.uint8))], encoding)


def test_two_tokens_in_front_are_refused():
    with pytest.raises(ValueError, match=r"at most one token in front of a text, .*; got \(1, 2\)"):
        encoding_of(Characters(asked=[BOS, EOS]), VOCAB)


def test_what_continues_a_text_has_the_ids_that_it_has_there():
    encoding = encoding_of(Characters(asked=[BOS], pairs=("\nT", "is")), VOCAB + 2)
    assert encoding.continued("tree\n", "is") == [VOCAB + 1]
    with pytest.raises(ValueError, match=r"keep apart what follows 'tree\\n'; got 'The' joined"):
        encoding.continued("tree\n", "The")


def test_zero_characters_are_no_text():
    encoding = encoding_of(Characters(), VOCAB)
    utf_16 = Document("a.txt", np.frombuffer("a text".encode("utf-16-le"), np.uint8))
    with pytest.raises(ValueError, match=r"`data.source` must lead to UTF-8 text .*; got 6 zero characters in a.txt"):
        encoded([utf_16], encoding)


def words(*special: str):
    """A tokenizer that knows two words, and some special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    return encoding_of(tokenizer, 8)


@pytest.mark.parametrize(
    ("encoding", "unknown"), [(words("<unk>"), 0), (words(), 0), (encoding_of(Characters(), VOCAB), None)]
)
def test_the_unknown_token_is_found_in_the_ids(encoding, unknown):
    assert encoding.unknown == unknown


def test_what_the_tokenizer_does_not_know_is_counted_and_said():
    encoding = words("<unk>")
    (opening, unknown) = remarks(encoded([document("a b cat a")], encoding), encoding)
    assert opening.endswith("no BOS opens a window")
    assert unknown.startswith("1 of 4 tokens of the text (25.0%) are <unk>")
    assert len(remarks(encoded([document("a b a")], encoding), encoding)) == 1


def test_special_tokens_that_the_text_writes_out_are_said():
    encoding = words("<end>")
    (_, special) = remarks(encoded([document("a <end> b <end>")], encoding), encoding)
    assert special.endswith("the model reads as such: <end> 2 times")


def test_the_opening_token_is_said():
    encoding = encoding_of(Characters(asked=[BOS]), VOCAB)
    assert remarks(encoded([document("ab")], encoding), encoding) == (
        "every window opens with <s>, id 1, as the tokenizer does",
    )
