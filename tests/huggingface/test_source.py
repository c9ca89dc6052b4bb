"""Where configurations come from, and what is no configuration: one clear line."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rope_jax as rj
from tests.huggingface.configs import CONFIGS


def test_file_folder_and_dict_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["gemma-3"]), encoding="utf-8")
    expected = rj.from_huggingface(CONFIGS["gemma-3"])
    assert rj.from_huggingface(path) == rj.from_huggingface(str(tmp_path)) == expected


def test_a_hub_id_is_looked_up_only_when_nothing_local_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = ModuleType("huggingface_hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    path = tmp_path / "snapshot" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIGS["llama-2"]), encoding="utf-8")
    asked: list[tuple[Any, ...]] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(path.parent)

    hub.snapshot_download = download  # type: ignore[attr-defined]
    assert rj.from_huggingface("meta-llama/Llama-2-7b-hf") == rj.from_huggingface(CONFIGS["llama-2"])
    options = {"allow_patterns": ["config.json"], "local_files_only": False}
    assert asked == [("meta-llama/Llama-2-7b-hf", options)]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold a config\.json; got meta-llama/Llama-2-7b-hf without one"):
        rj.from_huggingface("meta-llama/Llama-2-7b-hf")

    def offline(name: str, **options: Any) -> str:
        raise OSError("no route to host")

    hub.snapshot_download = offline  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError, match=r"`source` must be a local path or a hub id; got 'a/b'"):
        rj.from_huggingface("a/b")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"huggingface_hub is not installed. pip install rope-jax\[hf\]"):
        rj.from_huggingface("a/b")


@pytest.mark.parametrize("missing", ["no/such/folder/config.json", "missing.json", "/absent/model"])
def test_a_missing_file_is_said_to_be_missing(missing: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"`source` must be.*got"):
        rj.from_huggingface(missing)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "must be valid JSON"),
        (b"[]", "must hold a JSON object; got list"),
        (b"\xff\xfe{}", "must be valid JSON; got .*: 'utf-8' codec"),
        (b"[" * 100_000, "must be valid JSON; got .*: maximum recursion depth"),
        (b'{"a": {"head_dim": 64, "head_dim": 32}}', "must be valid JSON; got .*: the key 'head_dim' stands twice"),
        (
            b'{"a": [{"b": 1' + b"0" * 400 + b"}]}",
            r"`a\[0\]\.b` must be a number that a float can hold; got",
        ),
        (b'{"a": 1' + b"0" * 5000 + b"}", "must be valid JSON; got .*: Exceeds the limit"),
    ],
    ids=["cut", "list", "no text", "deep", "twice", "huge", "endless"],
)
def test_what_is_no_configuration(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=f"^`.*{message.removeprefix('`')}") as caught:
        rj.from_huggingface(path)
    assert type(caught.value) is ValueError and "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_path(tmp_path: Path) -> None:
    for source in (3, None, True, b"folder", ["folder"]):
        with pytest.raises(TypeError, match=r"`source` must be a path or a hub id; got .*Pass a str or a Path"):
            rj.from_huggingface(source)  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"`source` must be a path that may be read; got 'xxx.*: File name too long"):
        rj.from_huggingface("x" * 5000)
    # A folder of that name is here, so nothing is asked of the hub.
    with pytest.raises(FileNotFoundError, match=r"`source` must hold a config\.json; got .* without one"):
        rj.from_huggingface(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match=r"`source` must be a path that may be read; got .*: Permission denied"):
        rj.from_huggingface(tmp_path)


def test_the_hub_is_asked_once_and_quietly(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the hf extra is not installed: huggingface_hub")
    asked: list[str] = []

    def no_network(self: Any, *arguments: Any, **options: Any) -> Any:
        asked.append("the hub")
        raise OSError("no route to host")

    def never(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.HfApi, "repo_info", no_network)
    monkeypatch.setattr("time.sleep", never)
    with pytest.raises(FileNotFoundError, match="neither here nor reachable there") as caught:
        rj.from_huggingface("nobody/no-such-model")
    assert asked == ["the hub"] and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
