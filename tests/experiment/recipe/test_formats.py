"""Lines of JSON and tables, and what is said where they are none."""

import builtins
import sys
from types import SimpleNamespace

import pytest

from rope_jax.experiment.recipe.settings import SourceConfig
from rope_jax.experiment.recipe.sources import read_documents


def read(path, **settings):
    return {
        document.name: document.tokens.tobytes()
        for document in read_documents(SourceConfig(str(path), **settings), "data.sources[0]")
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", r"`data.sources\[0\].path` must hold a JSON object a line; got .*a.jsonl:2"),
        ("", r"a JSON object a line; got .*a.jsonl:2, an empty line. Correct that line, or delete it"),
        ('{"text": "to', r"got .*a.jsonl:2, Invalid control character at \(character 12\)"),
        ('{"text": "a", "text": "b"}', r"got .*a.jsonl:2, the field 'text' more than once"),
        ('{"text": "a", "n": {"of": 1, "of": 2}}', r"got .*a.jsonl:2, the field 'of' more than once"),
        ('{"text": "a", "deep": ' + "[" * 10_000, r"got .*a.jsonl:2, nested too deeply"),
        ('{"text": "a"}'.encode("utf-16-le").decode(), r"got .*a.jsonl:2, with zero bytes, so binary or UTF-16"),
        ("null", r"got 'text' at .*a.jsonl:2, a NoneType"),
        ('{"text": null}', r"got 'text' at .*a.jsonl:2, a NoneType in it"),
        ('"text"', r"`data.sources\[0\].field` must name a text in every record; got 'text' at .*a.jsonl:2, a str"),
        ('{"body": "x"}', r"got 'text' at .*a.jsonl:2, the fields \['body'\]"),
        ('{"text": 3}', r"got 'text' at .*a.jsonl:2, a int in it"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "a.jsonl")


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


@pytest.mark.parametrize("error", [OSError("Parquet file size is 0 bytes"), IndexError("list index\nout of range")])
@pytest.mark.parametrize("saved", [True, False])
def test_what_datasets_cannot_read_is_named(tmp_path, monkeypatch, error, saved):
    (tmp_path / ("state.json" if saved else "a.parquet")).write_bytes(b"{}")

    def failing(*arguments, **keywords):
        raise error

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=failing, load_from_disk=failing))
    said = r"`data.sources\[0\].path` must lead to what `datasets` can read; got .*" + ("" if saved else "a.parquet: ")
    with pytest.raises(ValueError, match=said) as raised:
        read(tmp_path)
    assert "\n" not in str(raised.value)


def test_tables_are_read_one_by_one_and_keep_their_names(tmp_path, monkeypatch):
    """Columns of one are not cast to the types of another, and a record is found again by its file."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(b"")
    tables = {"a": [{"text": "one"}, {"text": "two"}], "b": [{"text": 1}]}
    loaded = SimpleNamespace(
        load_dataset=lambda kind, data_files, **_: tables[data_files[0].split("/")[-1][0]], load_from_disk=None
    )
    monkeypatch.setitem(sys.modules, "datasets", loaded)
    with pytest.raises(ValueError, match=r"got 'text' at .*/b.parquet:0, a int in it"):
        read(tmp_path)
    tables["b"] = [{"text": "three"}]
    assert [name.split("/")[-1] for name in read(tmp_path)] == ["a.parquet:0", "a.parquet:1", "b.parquet:0"]


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
    datasets.Dataset.from_dict({"text": []}).save_to_disk(tmp_path / "empty")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "files" / "a.parquet").read_bytes()[:-9])
    for path in ("empty", "torn.parquet"):
        with pytest.raises(ValueError, match=r"must lead to what `datasets` can read; got .*" + path):
            read(tmp_path / path)


def test_half_a_character_in_a_record_is_named_with_its_line(tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text('{"text": "whole"}\n{"text": "\\ud800"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"`data\.sources\[0\]\.field` must name a text of whole .*half\.jsonl:2\."):
        read_documents(SourceConfig(path=str(path)), "data.sources[0]")


@pytest.mark.parametrize(
    "names", [("train-00000.parquet", "test-00000.parquet"), ("a/test/0.parquet", "a/train/0.parquet")]
)
def test_a_folder_of_several_splits_is_refused_before_it_is_read(tmp_path, names):
    """Else the split that is kept for a test would be trained on."""
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"`data.sources\[0\].path` must lead to one split; got .* train and test in it"
    ):
        read(tmp_path)
