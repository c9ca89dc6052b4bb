"""Where documents come from, and what is said where there are none."""

import json
import os

import pytest

from rope_jax.experiment.recipe.corpus import read_corpus
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from rope_jax.experiment.recipe.sources import read_documents


def read(path, **settings):
    return {
        document.name: document.tokens.tobytes()
        for document in read_documents(SourceConfig(str(path), **settings), "data.sources[0]")
    }


def test_a_text_file_is_a_document(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"fir\xffst")
    assert list(read(tmp_path / "*.txt").values()) == [b"fir\xffst", b"second"]
    assert list(read(tmp_path / "b.txt").values()) == [b"second"]


def test_a_line_of_json_is_a_document(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"body": "one\nline"}) + "\n" + json.dumps({"body": "gr\u00fc\u00df", "text": 1}) + "\n")
    found = read(file, field="body")
    assert found == {f"{file}:1": b"one\nline", f"{file}:2": "gr\u00fc\u00df".encode()}
    other = tmp_path / "a.log"
    other.write_bytes(file.read_bytes())
    assert list(read(other, field="body", format="jsonl").values()) == list(found.values())
    assert len(read(other)) == 1


def test_the_standard_library_is_a_source():
    assert "json/decoder.py" in read("stdlib")


def test_documents_outside_the_bounds_are_left_out_whole(tmp_path):
    for size in (1, 2, 3, 4, 5):
        (tmp_path / f"{size}.txt").write_bytes(b"x" * size)
    (source,) = read_corpus(RecipeConfig((SourceConfig(f"{tmp_path}/*.txt", shortest=2, longest=4),))).sources
    assert [document.tokens.size for document in source.documents] == [2, 3, 4]
    assert source.left_out == 2
    with pytest.raises(ValueError, match=r"`data.sources\[1\]` must hold documents of 6 to 9 tokens; got 5 .* 1 to 5"):
        read_corpus(RecipeConfig((SourceConfig(), SourceConfig(f"{tmp_path}/*.txt", shortest=6, longest=9))))


def test_the_digest_tells_texts_and_sources_apart(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(2 * name)

    def digest(*groups):
        return read_corpus(RecipeConfig(tuple(SourceConfig(f"{tmp_path}/{group}") for group in groups))).digest

    digests = [digest("a"), digest("b"), digest("a", "b"), digest("b", "a"), digest("[ab]")]
    assert len(set(digests)) == len(digests)
    assert digest("a", "b") == digests[2]


@pytest.mark.parametrize("path", ["absent.txt", "*.absent", "folder"])
def test_a_path_to_nothing_raises(tmp_path, path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"`data.sources\[0\].path` must lead to files; got .*" + path.strip("*")):
        read(tmp_path / path)


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\0\0", "text".encode("utf-16"), "text".encode("utf-16-le")])
def test_what_is_no_text_is_taken_only_where_it_is_asked_for(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"must lead to text; got .*a.txt' with \d zero bytes, which is binary, or text"
    ):
        read(tmp_path / "a.txt")
    assert list(read(tmp_path / "a.txt", format="text").values()) == [content]


def test_a_file_is_read_once_however_many_names_it_has(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.txt").write_bytes(b"once")
    (tmp_path / "d.txt").symlink_to(tmp_path / "a" / "b" / "c.txt")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    for pattern in ("**/*.txt", "**/**/*.txt"):
        assert read(tmp_path / pattern) == {f"{tmp_path}/a/b/c.txt": b"once"}


@pytest.mark.parametrize("pattern", ["*", "odd", "**/*"])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, pattern):
    (tmp_path / "a.txt").write_bytes(b"text")
    (tmp_path / "odd").symlink_to(tmp_path / "absent")
    for make in (lambda: (tmp_path / "odd").symlink_to(tmp_path / "absent"), lambda: os.mkfifo(tmp_path / "odd")):
        (tmp_path / "odd").unlink()
        make()
        with pytest.raises(ValueError, match=r"must lead to files; got .*odd', a link to nothing or what is no file"):
            read(tmp_path / pattern)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("a.jsonl.gz", "b.jsonl"),
            r"`data.sources\[0\].path` must lead to files that are not packed; got .*a.jsonl.gz",
        ),
        (
            ("a.txt", "b.JSONL"),
            r"`data.sources\[0\].format` must be given where files are of several kinds; got \"auto\"",
        ),
        (
            ("a.parquet", "b.ndjson"),
            r"of several kinds; got \"auto\" for .*'parquet': .*a.parquet.*'jsonl': .*b.ndjson",
        ),
        (("a.json",), r"`data.sources\[0\].format` must be given for .json; got \"auto\" for .*a.json"),
    ],
)
def test_endings_that_name_no_one_kind_are_refused(tmp_path, names, said):
    for name in names:
        (tmp_path / name).write_text('{"text": "a"}\n')
    with pytest.raises(ValueError, match=said):
        read(f"{tmp_path}/*.*")
    assert len(read(f"{tmp_path}/*.*", format="text")) == len(names)
    assert len(read(tmp_path / names[-1], format="jsonl")) == 1


def test_endings_are_read_in_either_case(tmp_path):
    (tmp_path / "a.JSONL").write_text('{"text": "a"}\n')
    assert list(read(tmp_path / "a.JSONL").values()) == [b"a"]


def test_an_empty_file_is_no_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    said = r"`data.sources\[0\]` must hold documents of 1 or more tokens; got 1 documents of 0 to 0 tokens in"
    with pytest.raises(ValueError, match=said):
        read_corpus(RecipeConfig((SourceConfig(f"{tmp_path}/*.txt"),)))


def test_a_folder_of_splits_is_not_one(tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must lead to files; got .* a folder of splits"):
        read(tmp_path)
