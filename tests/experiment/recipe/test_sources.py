"""Where documents come from, and what is said where there are none."""

import builtins
import json

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
        (tmp_path / name).write_text(name)

    def digest(*groups):
        return read_corpus(RecipeConfig(tuple(SourceConfig(f"{tmp_path}/{group}") for group in groups))).digest

    digests = [digest("a"), digest("b"), digest("a", "b"), digest("b", "a"), digest("[ab]")]
    assert len(set(digests)) == len(digests)
    assert digest("a", "b") == digests[2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", r"`data.sources\[0\].path` must hold a JSON object a line; got .*a.jsonl:2"),
        ("", r"a JSON object a line; got .*a.jsonl:2"),
        ('"text"', r"`data.sources\[0\].field` must name a text in every record; got 'text' at .*a.jsonl:2, a str"),
        ('{"body": "x"}', r"got 'text' at .*a.jsonl:2, the fields \['body'\]"),
        ('{"text": 3}', r"got 'text' at .*a.jsonl:2, a int in it"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "a.jsonl")


@pytest.mark.parametrize("path", ["absent.txt", "*.absent", "folder"])
def test_a_path_to_nothing_raises(tmp_path, path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"`data.sources\[0\].path` must lead to files; got .*" + path.strip("*")):
        read(tmp_path / path)


def test_a_folder_of_splits_is_not_one(tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must lead to files; got .* a folder of splits"):
        read(tmp_path)


def test_parquet_without_datasets_names_the_cure(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    imported = builtins.__import__

    def absent(name, *arguments, **keywords):
        if name == "datasets":
            raise ImportError(name)
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(
        ImportError, match=r"needs `datasets`, which is not installed. pip install rope-jax\[datasets\]"
    ):
        read(tmp_path / "a.parquet")


def test_parquet_and_saved_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": ["one", "two"], "body": ["three", "four"]})
    (tmp_path / "files").mkdir()
    table.to_parquet(tmp_path / "files" / "a.parquet")
    table.save_to_disk(tmp_path / "saved")
    for path in ("files/a.parquet", "files", "saved"):
        assert list(read(tmp_path / path, field="body").values()) == [b"three", b"four"]
    with pytest.raises(ValueError, match=r"`data.sources.0..field` must name a text in every record"):
        read(tmp_path / "files", field="absent")


def test_half_a_character_in_a_record_is_named_with_its_line(tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text('{"text": "whole"}\n{"text": "\\ud800"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"`data\.sources\[0\]\.field` must name a text of whole .*half\.jsonl:2\."):
        read_documents(SourceConfig(path=str(path)), "data.sources[0]")
