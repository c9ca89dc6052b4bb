"""What is learned and how it is asked: text, and finding a key."""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from rope_jax.experiment.config import DataConfig, ExperimentConfig
from rope_jax.experiment.data import (
    Document,
    corpus_digest,
    evaluation_windows,
    load_corpus,
    opened,
    split_corpus,
    training_batches,
    windows_line_ends,
)
from rope_jax.experiment.encoding import Encoding, encoded, remarks
from rope_jax.experiment.items import Batch, Questions, Task
from rope_jax.experiment.passkey_words import PasskeyWordsTask

__all__ = ["TASKS", "Batch", "PasskeyTask", "Questions", "Task", "TextTask", "make_task"]

SPLIT_SEED = 0  # the held-out files are the same for every seed of a sweep


class TextTask:
    """Predicting the next token of text.

    Args:
        train: documents to train on; none for weights that are only judged.
        windows: int32 [count, longest + 1]; the windows of a shorter length are suffixes.
        seed: of the training order.
        corpus: digest of the whole text.
        encoding: the checkpoint's tokenizer; None for bytes. Its BOS then opens every window, in the place of the
            first token, which is never a target.
        notes: what a reader of the losses must know of the text.
    """

    name = "text"
    metric = "loss"

    def __init__(
        self,
        train: Sequence[Document],
        windows: np.ndarray,
        seed: int,
        corpus: str | None = None,
        encoding: Encoding | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.train = tuple(train)
        self.windows = windows
        self.seed = seed
        self.corpus = corpus
        self.notes = notes
        self.vocab = 256 if encoding is None else encoding.vocab
        self.bos = None if encoding is None else encoding.bos
        self._batches: dict[tuple[int, int], Any] = {}

    def train_batch(self, step: int, length: int, batch: int) -> Batch:
        """Windows of the training files, shuffled anew in every epoch; every target counts."""
        if (length, batch) not in self._batches:
            self._batches[length, batch] = training_batches(self.train, length, batch, self.seed)
        tokens = opened(self._batches[length, batch][step], self.bos)
        return Batch(tokens, np.ones((batch, length), np.float32))

    def questions(self, length: int) -> Questions:
        """The last `length + 1` tokens of every window, the first of them BOS where there is one."""
        longest = self.windows.shape[1] - 1
        if not 1 <= length <= longest:
            raise ValueError(f"`length` must lie between 1 and the longest window, {longest}; got {length}. Lower it.")
        tokens = opened(self.windows[:, longest - length :], self.bos)
        return Questions(tokens, np.ones((len(tokens), length), np.float32), None)

    def chance(self, questions: Questions) -> float | None:
        """None: a loss has no chance level."""
        return None


class PasskeyTask:
    """Finding a key in filler: BOS, filler, key, filler, QUERY, and the key again as the answer.

    The key's alphabet is disjoint from the filler's and only the answer is scored. The model reads `length` tokens;
    the last token of the answer is only a target. Tokens: 0 BOS, 1 QUERY, then filler symbols, then key symbols.

    Args:
        data: key length and alphabets.
        depths: places of the key that are asked, spread evenly from the first to the last.
        trials: items per place.
        seed: of all items.
    """

    name = "passkey"
    metric = "passkey_accuracy"
    corpus: str | None = None
    notes: tuple[str, ...] = ()
    bos, query = 0, 1

    def __init__(self, data: DataConfig, depths: int, trials: int, seed: int) -> None:
        self.key_length = data.key_length
        self.first_key = 2 + data.filler_symbols
        self.symbols = data.key_symbols
        self.vocab = self.first_key + data.key_symbols
        self.depths = depths
        self.trials = trials
        self.seed = seed

    def train_batch(self, step: int, length: int, batch: int) -> Batch:
        """Items whose key lies anywhere."""
        random = np.random.default_rng((self.seed, 0, length, batch, step))
        starts = random.integers(1, self._last_start(length), size=batch, endpoint=True)
        tokens = np.stack([self._item(random, length, start) for start in starts.tolist()])
        return Batch(tokens, self._weights(length, batch))

    def questions(self, length: int) -> Questions:
        """`depths` x `trials` items; an item depends on (seed, length, place of its key, trial) alone."""
        last = self._last_start(length)
        shares = np.linspace(0.0, 1.0, self.depths)
        starts = [1 + round(share * (last - 1)) for share in shares.tolist()]
        tokens = np.stack(
            [
                self._item(np.random.default_rng((self.seed, 1, length, start, trial)), length, start)
                for start in starts
                for trial in range(self.trials)
            ]
        )
        return Questions(tokens, self._weights(length, len(tokens)), np.repeat(shares, self.trials).astype(np.float32))

    def chance(self, questions: Questions) -> float:
        """Accuracy of guessing a symbol of the key's alphabet."""
        return 1.0 / self.symbols

    def _last_start(self, length: int) -> int:
        """The last index where a key can begin: the question and the answer follow it."""
        last = length - 2 * self.key_length
        if last < 1:
            least = 2 * self.key_length + 1
            raise ValueError(f"`length` must be at least {least}, to hold two keys; got {length}. Raise it.")
        return last

    def _item(self, random: np.random.Generator, length: int, start: int) -> np.ndarray:
        """One sequence, int32 [length + 1], whose key begins at `start`."""
        key = random.integers(self.first_key, self.vocab, size=self.key_length)
        tokens = random.integers(2, self.first_key, size=length + 1)
        tokens[0] = self.bos
        tokens[start : start + self.key_length] = key
        tokens[-self.key_length - 1] = self.query
        tokens[-self.key_length :] = key
        return tokens.astype(np.int32)

    def _weights(self, length: int, items: int) -> np.ndarray:
        """1 on the targets of the answer, 0 elsewhere."""
        weights = np.zeros((items, length), np.float32)
        weights[:, -self.key_length :] = 1.0
        return weights


def _text(config: ExperimentConfig, seed: int, longest: int, encoding: Encoding | None) -> TextTask:
    documents = load_corpus(config.data.source)
    line_ends = windows_line_ends(documents)
    if encoding is not None:
        documents = encoded(documents, encoding)
    train, held_out = documents[:0], documents
    if config.trains:
        train, held_out = split_corpus(documents, config.data.held_out_tokens, longest, SPLIT_SEED)
    tail = config.train.length // 4
    windows = evaluation_windows(held_out, longest, config.evaluate.windows, tail=tail)
    notes = () if encoding is None else (*line_ends, *remarks(documents, encoding))
    return TextTask(train, windows, seed, corpus_digest(documents), encoding, notes)


def _passkey(config: ExperimentConfig, seed: int, longest: int, encoding: Encoding | None) -> Task:
    del longest  # items are drawn for each length
    data, evaluate = config.data, config.evaluate
    if encoding is not None:
        return PasskeyWordsTask(encoding, data.key_length, evaluate.depths, evaluate.trials, seed)
    return PasskeyTask(data, evaluate.depths, evaluate.trials, seed)


# Every task by the name that configurations use. A new task adds its row here.
TASKS: MappingProxyType[str, Callable[[ExperimentConfig, int, int, Encoding | None], Task]] = MappingProxyType(
    {"text": _text, "passkey": _passkey}
)


def make_task(config: ExperimentConfig, seed: int, longest: int, encoding: Encoding | None = None) -> Task:
    """The task of `config.data` for one seed, able to ask up to `longest` tokens.

    Args:
        config: the experiment.
        seed: of the order of training and of what is drawn.
        longest: the longest length asked, in tokens.
        encoding: the checkpoint's tokenizer; None for a model that is trained here, whose tokens are bytes or symbols.

    Raises:
        ValueError: the text is missing or too short, or the tokenizer has no tokens for it.

    Example:
        >>> config = ExperimentConfig(name="a", data=DataConfig(task="passkey"))
        >>> make_task(config, seed=0, longest=512).train_batch(0, length=64, batch=2).tokens.shape
        (2, 65)
    """
    return TASKS[config.data.task](config, seed, longest, encoding)
