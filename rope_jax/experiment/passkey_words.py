"""Finding a number in prose: the passkey task for a model with a vocabulary of words."""

from dataclasses import dataclass

import numpy as np

from rope_jax.experiment.encoding import Encoding
from rope_jax.experiment.items import Batch, Questions

INSTRUCTION = (
    "Somewhere in the text below, one secret number is given. Everything else is of no importance. "
    "Keep the number in mind, for it will be asked for at the end.\n"
)
NEEDLE = "The secret number is {key}.\n"
QUESTION = "What is the secret number? The secret number is"
ANSWER = " {key}"
FILLER = (
    "A narrow path led down to the water between two rows of old willows.",
    "In the morning the mill was silent and the wheel stood still.",
    "Nobody in the village could say when the bridge had been built.",
    "She folded the letter and put it back between the pages of the book.",
    "The dog slept in the shade of the cart until the heat had passed.",
    "Rain had washed the dust from the leaves and the air smelled of earth.",
    "They carried the apples up to the loft and laid them out on straw.",
    "A lamp was burning in the window of the house beyond the field.",
    "The teacher wiped the board and opened all of the windows.",
    "On the far bank a boy was throwing stones at a floating branch.",
    "The baker left a loaf by the door, as he did every week.",
    "Clouds gathered over the hills, but the wind drove them on.",
)
LINE_END = ".\n"
MISSING = "`tokenizer` must write the passkey's sentences without unknown tokens; got {written!r} back for {text!r}. "


@dataclass(frozen=True)
class Item:
    """The parts of a prompt that hold its number, or ask for it."""

    needle: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]


class PasskeyWordsTask:
    """Finding a number in sentences: BOS, instruction, filler, needle, filler, question, and the number as the answer.

    Filler is cut by tokens, so that a prompt has exactly the length that is asked for; needle, question and answer are
    whole and have the tokens that they have in running text. Only the tokens of the answer are scored. The model reads
    `length` tokens; the last token of the answer is only a target.

    Args:
        encoding: the checkpoint's tokenizer.
        digits: decimal digits of the number, the first of them not 0.
        depths: places of the needle that are asked, spread evenly from the first to the last.
        trials: items per place.
        seed: of all items.

    Raises:
        ValueError: the tokenizer has no tokens for the sentences, or none that are the answer's own.
    """

    name = "passkey"
    metric = "passkey_accuracy"
    corpus: str | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, encoding: Encoding, digits: int, depths: int, trials: int, seed: int) -> None:
        self.vocab = encoding.vocab
        self.bos = encoding.bos
        self.encoding = encoding
        self.digits = digits
        self.depths = depths
        self.trials = trials
        self.seed = seed
        for text in (INSTRUCTION + NEEDLE + QUESTION + "0123456789", " ".join(FILLER)):
            _refuse_unknown(encoding, text)
        self._start = ([] if self.bos is None else [self.bos]) + encoding.ids(INSTRUCTION)
        self._item(np.random.default_rng(0))

    def train_batch(self, step: int, length: int, batch: int) -> Batch:
        """Items whose number lies anywhere."""
        random = np.random.default_rng((self.seed, 0, length, batch, step))
        made = [self._prompt(random, length, float(share)) for share in random.uniform(size=batch)]
        return Batch(np.stack([tokens for tokens, _ in made]), np.stack([weights for _, weights in made]))

    def questions(self, length: int) -> Questions:
        """`depths` x `trials` items; an item depends on (seed, length, place of its number, trial) alone."""
        shares = np.linspace(0.0, 1.0, self.depths)
        made = [
            self._prompt(np.random.default_rng((self.seed, 1, length, round(1e6 * share), trial)), length, share)
            for share in shares.tolist()
            for trial in range(self.trials)
        ]
        tokens, weights = (np.stack([pair[part] for pair in made]) for part in (0, 1))
        return Questions(tokens, weights, np.repeat(shares, self.trials).astype(np.float32))

    def chance(self, questions: Questions) -> float:
        """Accuracy of guessing digits, as many as each token of the answers writes."""
        answers = questions.tokens[:, 1:][questions.weights > 0]
        return float(np.mean([0.1 ** len(self.encoding.text([one]).strip()) for one in answers.tolist()]))

    def _item(self, random: np.random.Generator) -> Item:
        """A number and the parts that hold it, in the tokens of running text."""
        key = str(random.integers(10 ** (self.digits - 1), 10**self.digits))
        continued = self.encoding.continued
        needle = continued(LINE_END, NEEDLE.format(key=key))
        question = continued(LINE_END, QUESTION)
        answer = continued(LINE_END + QUESTION, ANSWER.format(key=key))
        # A space that is a token by itself says nothing about the number.
        while answer and not self.encoding.text(answer[:1]).strip():
            question, answer = question + answer[:1], answer[1:]
        if [self.encoding.text([one]).strip().isdigit() for one in answer] != [True] * len(answer) or not answer:
            raise ValueError(
                f"`tokenizer` must write a number in tokens of digits; got {key} as "
                f"{[self.encoding.text([one]) for one in answer]}. Use another checkpoint, or the synthetic task."
            )
        return Item(tuple(needle), tuple(question), tuple(answer))

    def _prompt(self, random: np.random.Generator, length: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [length + 1] whose needle lies at a share of the filler, and the weights of their targets [length]."""
        item = self._item(random)
        fixed = len(self._start) + len(item.needle) + len(item.question) + len(item.answer)
        filler = length + 1 - fixed
        if filler < 0:
            raise ValueError(
                f"`length` must hold the passkey's instruction, needle and question, {fixed - 1} tokens; got {length}. "
                "Leave the shorter ones of sweep.multiples out, or shorten data.key_length."
            )
        before = round(share * filler)
        lines = [self._sentences(random, count) for count in (before, filler - before)]
        tokens = [*self._start, *lines[0], *item.needle, *lines[1], *item.question, *item.answer]
        weights = np.zeros(length, np.float32)
        weights[-len(item.answer) :] = 1.0
        return np.asarray(tokens, np.int32), weights

    def _sentences(self, random: np.random.Generator, count: int) -> list[int]:
        """`count` tokens of filler, from the start of a sentence on; where they end in its middle, a line ends."""
        if count == 0:
            return []
        # Every sentence has more words than that, and a word is a token or more.
        many = 1 + count // 8
        text = " ".join(FILLER[index] for index in random.integers(len(FILLER), size=many).tolist())
        found = self.encoding.continued(LINE_END, text)[: count - 1]
        return found + self.encoding.continued("tree", "\n")[:1] * (count - len(found))


def _refuse_unknown(encoding: Encoding, text: str) -> None:
    """Raises unless the text comes back from its tokens, spaces aside."""
    written = encoding.text(encoding.ids(text))
    if "".join(written.split()) != "".join(text.split()):
        cure = "Use a checkpoint with a vocabulary for English, or the synthetic task."
        raise ValueError(MISSING.format(written=written[:80], text=text[:80]) + cure)
