"""A number hidden in sentences: exact lengths, whole needles, answers that are digits."""

import numpy as np
import pytest

from rope_jax.experiment.encoding import encoding_of
from rope_jax.experiment.passkey_words import FILLER, INSTRUCTION, PasskeyWordsTask
from tests.experiment.vocabularies import BOS, EOS, VOCAB, Characters

DIGITS = tuple(f"{one}{other}" for one in range(10) for other in range(10))
SHORTEST = (
    1
    + len(INSTRUCTION)
    + len("The secret number is 12345.\n")
    + len("What is the secret number? The secret number is 12345")
)


def task(depths=3, trials=2, seed=0, **added) -> PasskeyWordsTask:
    added = {"asked": [BOS]} | added
    return PasskeyWordsTask(
        encoding_of(Characters(**added), VOCAB + len(added.get("pairs", ()))), 5, depths, trials, seed
    )


def written(task: PasskeyWordsTask, tokens: np.ndarray) -> str:
    return task.encoding.text(tokens.tolist())


@pytest.mark.parametrize("length", [SHORTEST - 1, 400, 512, 777])
@pytest.mark.parametrize("added", [{}, {"pairs": DIGITS}, {"asked": [], "always": [BOS]}, {"ends": [EOS]}])
def test_a_prompt_has_exactly_its_length_and_its_number_twice(length, added):
    asked = task(**added)
    questions = asked.questions(length)
    assert questions.tokens.shape == (6, length + 1)
    assert np.array_equal(np.argwhere(questions.tokens == BOS), [[row, 0] for row in range(6)])
    for tokens, weights in zip(questions.tokens, questions.weights, strict=True):
        text = written(asked, tokens)
        key = text[-5:]
        assert key.isdigit() and key[0] != "0"
        assert text.startswith("<s>" + INSTRUCTION)
        assert text.count(f"\nThe secret number is {key}.\n") == 1
        assert text.endswith(f"\nWhat is the secret number? The secret number is {key}")
        assert sum(one.isdigit() for one in text) == 10
        # The answer's tokens are scored, all of them and nothing else: digits, without the space before them.
        answer = tokens[1:][weights > 0]
        assert written(asked, answer) == key
        assert np.all(weights[: -len(answer)] == 0)


def test_the_number_lies_at_every_depth():
    questions = task(depths=5, trials=1).questions(800)
    places = [written(task(), tokens).index("The secret number is") for tokens in questions.tokens]
    assert places[0] == len("<s>") + len(INSTRUCTION)
    free = 801 - SHORTEST
    assert places == [places[0] + round(share * free) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert questions.depths is not None
    assert questions.depths.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_an_item_depends_on_seed_length_depth_and_trial_alone():
    everything = task(depths=3, trials=4).questions(500).tokens
    other = task(depths=2, trials=2)
    other.train_batch(0, 500, 2)
    assert np.array_equal(other.questions(500).tokens, everything[[0, 1, 8, 9]])
    assert not np.array_equal(task(depths=3, trials=4, seed=1).questions(500).tokens, everything)
    batches = [task(seed=seed).train_batch(step, 500, 2).tokens for seed in (0, 1) for step in (0, 1)]
    assert np.unique(np.concatenate(batches), axis=0).shape[0] == 8


def test_chance_is_that_of_the_tokens():
    single, double = task(), task(pairs=DIGITS)
    assert single.chance(single.questions(400)) == pytest.approx(0.1)
    # Five digits as two pairs and one alone.
    assert double.chance(double.questions(400)) == pytest.approx((0.01 + 0.01 + 0.1) / 3)


def test_filler_is_sentences():
    text = written(task(), task().questions(3000).tokens[0])
    assert sum(text.count(sentence) for sentence in FILLER) > 20


def test_a_length_without_room_is_refused_with_the_least():
    with pytest.raises(ValueError, match=rf"needle and question, {SHORTEST - 1} tokens; got {SHORTEST - 2}\. "):
        task().questions(SHORTEST - 2)


class Forgetful(Characters):
    """Knows no digits."""

    def encode(self, text, add_special_tokens=True):
        found = super().encode(text, add_special_tokens)
        found.ids = [0 if chr(one - 3).isdigit() else one for one in found.ids]
        return found


def test_a_vocabulary_without_the_words_is_refused():
    with pytest.raises(ValueError, match=r"without unknown tokens; got .* back for 'Somewhere .*Use a checkpoint"):
        PasskeyWordsTask(encoding_of(Forgetful(), VOCAB), 5, 3, 2, 0)


def test_an_answer_that_has_no_tokens_of_its_own_is_refused():
    with pytest.raises(ValueError, match=r"must keep apart what follows .*'; got ' \d{5}' joined with it"):
        task(pairs=("s ",))
