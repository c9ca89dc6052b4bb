"""Text: where it comes from, what is held out, and which bytes a step or a window holds."""

import numpy as np
import pytest

from rope_jax.experiment.data import (
    Document,
    corpus_digest,
    evaluation_windows,
    load_corpus,
    split_corpus,
    training_batches,
    windows_line_ends,
)


def documents(*sizes: int) -> tuple[Document, ...]:
    """Files whose bytes name the file: file i holds bytes with i in the high half and a running low half."""
    return tuple(Document(f"{i}.txt", (16 * i + np.arange(size) % 16).astype(np.uint8)) for i, size in enumerate(sizes))


@pytest.fixture(scope="module")
def stdlib() -> tuple[Document, ...]:
    return load_corpus("stdlib")


def test_the_standard_library_is_code_without_tests(stdlib):
    names = [document.name for document in stdlib]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    left_out = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"}
    assert not any(left_out & set(name.split("/")[:-1]) for name in names)
    assert min(document.tokens.size for document in stdlib) > 200
    assert sum(document.tokens.size for document in stdlib) > 5_000_000


def test_one_file_and_a_glob(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first\xff")
    (tmp_path / "empty.txt").write_bytes(b"")
    (single,) = load_corpus(str(tmp_path / "b.txt"))
    assert single.tokens.dtype == np.uint8
    assert single.tokens.tobytes() == b"second"
    both = load_corpus(str(tmp_path / "*.txt"))
    assert [document.tokens.tobytes() for document in both] == [b"first\xff", b"second"]


@pytest.mark.parametrize("name", ["absent.txt", "*.absent", "empty.txt", "."])
def test_nothing_to_read_raises(tmp_path, name):
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"`data.source` must lead to files that hold text"):
        load_corpus(str(tmp_path / name))


def test_the_digest_is_of_names_bytes_and_their_borders():
    def digest(*files):
        return corpus_digest([Document(name, np.frombuffer(content, np.uint8)) for name, content in files])

    digests = [
        digest(("a", b"xy"), ("b", b"z")),
        digest(("a", b"x"), ("b", b"yz")),
        digest(("a", b"xy"), ("c", b"z")),
        digest(("a", b"xy"), ("b", b"y")),
        digest(("a", b"xybz")),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(("a", b"xy"), ("b", b"z")) == digests[0]


def test_whole_files_are_held_out_and_long_enough():
    corpus = documents(50, 400, 90, 300, 700, 20, 200, 500)
    train, held_out = split_corpus(corpus, 600, 128, seed=0)
    assert {document.name for document in train}.isdisjoint(document.name for document in held_out)
    assert {document.name for document in (*train, *held_out)} == {document.name for document in corpus}
    assert sum(document.tokens.size for document in held_out) >= 600
    assert all(document.tokens.size >= 129 for document in held_out)


def test_the_split_is_a_function_of_the_seed():
    corpus = documents(*[200] * 15)
    chosen = [[document.name for document in split_corpus(corpus, 600, 128, seed)[1]] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[0]) == 3


def test_one_file_is_cut_before_its_last_bytes():
    (whole,) = documents(1000)
    (train,), (held_out,) = split_corpus([whole], 300, 128, seed=0)
    assert np.array_equal(train.tokens, whole.tokens[:700])
    assert np.array_equal(held_out.tokens, whole.tokens[700:])


@pytest.mark.parametrize(
    ("sizes", "held_out_tokens", "longest", "numbers"),
    [
        ([1000], 501, 64, ["501", "1000"]),
        ([1000], 64, 64, ["64 tokens", "got 64 tokens"]),
        ([100, 100, 100], 120, 128, ["128 tokens", "got 120 tokens"]),
        ([100, 100, 100], 140, 128, ["129 tokens", "100 to 100", "300"]),
        ([900, 50, 50], 300, 128, ["300", "900"]),
    ],
)
def test_a_corpus_too_short_to_split_raises_with_the_numbers(sizes, held_out_tokens, longest, numbers):
    with pytest.raises(ValueError, match="must") as error:
        split_corpus(documents(*sizes), held_out_tokens, longest, seed=0)
    assert all(number in str(error.value) for number in numbers)


def test_a_batch_holds_consecutive_bytes_of_single_files():
    batches = training_batches(documents(100, 40, 5, 90), length=16, batch=4, seed=0)
    for step in range(5):
        rows = batches[step]
        assert rows.shape == (4, 17)
        assert rows.dtype == np.int32
        assert np.all(rows // 16 == rows[:, :1] // 16)
        assert np.all(np.diff(rows % 16, axis=1) % 16 == 1)


def test_an_epoch_holds_every_window_once_and_the_next_one_has_another_order():
    text = np.arange(6 * 8 + 1, dtype=np.uint8)
    batches = training_batches([Document("a", text)], length=8, batch=3, seed=0)
    first = [int(row[0]) for step in (0, 1) for row in batches[step]]
    second = [int(row[0]) for step in (2, 3) for row in batches[step]]
    assert sorted(first) == sorted(second) == [0, 8, 16, 24, 32, 40]
    orders = {tuple(first), tuple(second)}
    orders |= {tuple(int(row[0]) for step in (2 * k, 2 * k + 1) for row in batches[step]) for k in (2, 3)}
    assert len(orders) > 1


def test_a_step_gives_the_same_batch_whatever_ran_before():
    corpus = documents(300, 500)
    ran = training_batches(corpus, length=16, batch=4, seed=3)
    straight = [ran[step] for step in range(6)]
    resumed = training_batches(corpus, length=16, batch=4, seed=3)
    assert np.array_equal(resumed[5], straight[5])
    assert np.array_equal(resumed[2], straight[2])
    assert not np.array_equal(training_batches(corpus, length=16, batch=4, seed=4)[5], straight[5])


def test_too_few_windows_to_train_on_raise_with_the_numbers():
    with pytest.raises(ValueError, match=r"8 windows of 17 tokens; got 6 in 2 files of at most 80 tokens"):
        training_batches(documents(80, 40), length=16, batch=8, seed=0)


def test_windows_lie_in_single_files_and_end_apart():
    held_out = documents(120, 33, 400, 32)
    windows = evaluation_windows(held_out, longest=32, count=12, tail=8)
    assert windows.shape == (12, 33)
    assert windows.dtype == np.int32
    assert np.all(windows // 16 == windows[:, :1] // 16)
    assert np.all(np.diff(windows % 16, axis=1) % 16 == 1)
    assert 3 not in windows // 16


def test_windows_spread_evenly_over_one_file():
    text = np.arange(120, dtype=np.uint8)
    windows = evaluation_windows([Document("a", text)], longest=20, count=4)
    assert windows[:, 0].tolist() == [12, 37, 62, 87]
    assert np.array_equal(windows[2], np.arange(62, 83))


def test_scored_tails_never_overlap():
    text = np.arange(100, dtype=np.uint8)
    windows = evaluation_windows([Document("a", text)], longest=20, count=10, tail=8)
    tails = windows[:, -8:].ravel()
    assert len(set(tails.tolist())) == tails.size


def test_too_little_held_out_text_raises_with_the_numbers():
    with pytest.raises(
        ValueError,
        match=r"11 windows of 21 tokens that end 8 tokens apart; got 2 files of at most 100 tokens, where 10 fit",
    ):
        evaluation_windows(documents(100, 20), longest=20, count=11, tail=8)


def test_a_folder_is_refused_with_the_glob_of_its_files(tmp_path):
    with pytest.raises(ValueError, match=rf"got the folder '{tmp_path}'.*'{tmp_path}/\*'"):
        load_corpus(str(tmp_path))


def test_a_missing_and_an_empty_file_are_told_apart(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"empty[.]txt', an empty file"):
        load_corpus(f"{tmp_path}/empty.txt")
    with pytest.raises(ValueError, match=r"absent[.]txt', where no file is"):
        load_corpus(f"{tmp_path}/absent.txt")


@pytest.mark.parametrize(("size", "found"), [(9, "too short for one"), (19, "where 2 fit")])
def test_a_text_that_is_too_short_is_told_how_many_windows_fit(size, found):
    with pytest.raises(ValueError, match=rf"got 1 file of at most {size} tokens, {found}.*`sweep.multiples`"):
        evaluation_windows([Document("a", np.arange(size, dtype=np.uint8))], 10, 3, tail=4)


def test_windows_line_ends_are_said():
    plain, dos = (Document(name, np.frombuffer(text, np.uint8)) for name, text in (("a", b"a\nb\n"), ("b", b"a\r\n")))
    assert windows_line_ends([plain]) == ()
    (line,) = windows_line_ends([plain, dos])
    assert line.startswith("1 of 2 files of the text have Windows line ends")
