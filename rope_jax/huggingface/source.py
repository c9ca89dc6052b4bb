"""Where a configuration comes from: a dict, a file, a folder, or the Hugging Face hub."""

import copy
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Sub-configurations that hold the language model of a composite one.
TEXT = ("text_config", "llm_config", "language_config")
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_config(source: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """The raw configuration of the language model, as a copy of its own.

    Raises:
      FileNotFoundError: no such file, folder or repository.
      ValueError: not a JSON object.
    """
    # Raw JSON, never a constructed configuration object: those fill gaps with defaults that then look like settings.
    raw = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else _parse(_locate(source))
    return _text_model(raw)


def _locate(source: str | os.PathLike[str]) -> Path:
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return path
    name = os.fspath(source)
    if not _is_hub_id(name):
        raise FileNotFoundError(
            f"`source` must be a dict, a config.json, a folder that holds one or a hub id; got {name!r}."
        )
    return Path(_fetched(name, "hf_hub_download", "config.json"))


def hub_snapshot(repository: str, patterns: tuple[str, ...], *, fetch: bool = True) -> Path:
    """The folder of a hub repository's files of these patterns: from the cache or, with `fetch`, fetched into it.

    Raises:
      ImportError: huggingface_hub is not installed.
      FileNotFoundError: no hub id, or neither cached nor reachable (HF_HUB_OFFLINE=1 keeps to the cache).
    """
    if not _is_hub_id(repository):
        raise FileNotFoundError(f"`source` must be a folder, a file or a hub id; got {repository!r}, which is none.")
    return Path(_fetched(repository, "snapshot_download", allow_patterns=list(patterns), local_files_only=not fetch))


def _is_hub_id(name: str) -> bool:
    return HUB_ID.fullmatch(name) is not None and not name.endswith((".json", ".gguf", ".safetensors"))


def _fetched(repository: str, function: str, *files: str, **options: Any) -> str:
    try:
        import huggingface_hub
    except ImportError as missing:
        raise ImportError(
            f"`source` {repository!r} is no local file, and huggingface_hub is not installed. pip install rope-jax[hf]."
        ) from missing
    try:
        return str(getattr(huggingface_hub, function)(repository, *files, **options))
    except Exception as error:
        raise FileNotFoundError(
            f"`source` must be a local path or a hub id; got {repository!r}, which is neither here nor reachable there."
        ) from error


def _parse(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"`source` must be valid JSON; got {path}: {error}.") from error
    if not isinstance(raw, dict):
        raise ValueError(f"`source` must hold a JSON object; got {type(raw).__name__} in {path}.")
    return raw


def _text_model(raw: dict[str, Any]) -> dict[str, Any]:
    inner = next((raw[key] for key in TEXT if isinstance(raw.get(key), dict)), None)
    if inner is None:
        return raw
    # Files of composite models written on the way from the flat to the split form state the rope fields outside.
    outer = {key: raw[key] for key in ("model_type", *ROPE_KEYS) if raw.get(key) is not None}
    return outer | {key: value for key, value in inner.items() if value is not None or key not in outer}
