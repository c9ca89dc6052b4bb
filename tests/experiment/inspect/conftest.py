"""Configurations as folders, and what the command prints of them."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rope_jax.experiment.inspect import run_inspection
from tests.huggingface.configs import CONFIGS

Write = Callable[..., str]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A published configuration with changes of its rope dict, as a folder."""

    def save(name: str, beside: dict[str, Any] | None = None, **changes: Any) -> str:
        config = copy.deepcopy(CONFIGS[name]) | (beside or {})
        config["rope_scaling"] = {**(config.get("rope_scaling") or {}), **changes} or None
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return str(folder)

    return save


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command prints, without the line breaks that the width of a terminal brings."""

    def run(*words: str) -> str:
        assert run_inspection(words) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


@pytest.fixture
def as_object(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The JSON that the command prints."""

    def run(*words: str) -> Any:
        assert run_inspection([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run
