"""Where a configuration comes from: a dict, a file, a folder, or the Hugging Face hub."""

import copy
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Sub-configurations that hold the language model of a composite one.
TEXT = ("text_config", "llm_config", "language_config")
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_config(source: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """The raw configuration of the language model, as a copy of its own.

    Raises:
      TypeError: neither a dict nor a path.
      FileNotFoundError: no such file, folder or repository.
      ValueError: not a JSON object, a key that stands twice, a number that no float can hold.
    """
    # Raw JSON, never a constructed configuration object: those fill gaps with defaults that then look like settings.
    raw = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else read_json(_locate(source))
    _check_numbers(raw, "")
    return _text_model(raw)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
      OSError: no file that may be read.
      ValueError: no JSON object, or a key that stands twice.
    """
    with reading(path):
        text = path.read_bytes()
    try:
        raw = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`source` must be valid JSON; got {path}: {error}. Fetch the file again.") from error
    if not isinstance(raw, dict):
        raise ValueError(f"`source` must hold a JSON object; got {type(raw).__name__} in {path}. Fetch the file again.")
    return raw


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Names the argument where the system refuses a path or a file.

    Raises:
      OSError: of the kind that it was.
    """
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"`source` must be a path that may be read; got {os.fspath(path)[:200]!r}: {error.strerror or error}. "
            "Correct it, or its permissions."
        ) from error


def checked_path(source: Any) -> Path:
    """A source as a path.

    Raises:
      TypeError: no path.
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(name, str):
        raise TypeError(f"`source` must be a path or a hub id; got {type(source).__name__}. Pass a str or a Path.")
    return Path(name)


def _locate(source: str | os.PathLike[str]) -> Path:
    path = checked_path(source)
    name = os.fspath(source)
    with reading(path):
        # The empty string is a path too, that of the working directory.
        folder = path if path.is_dir() and name else None
        if folder is None and path.is_file():
            return path
    if folder is None and not _is_hub_id(name):
        raise FileNotFoundError(
            f"`source` must be a dict, a config.json, a folder that holds one or a hub id; got {name!r}."
        )
    folder = hub_snapshot(name, ("config.json",)) if folder is None else folder
    with reading(folder):
        if (folder / "config.json").is_file():
            return folder / "config.json"
    raise FileNotFoundError(f"`source` must hold a config.json; got {name} without one. Add the configuration.")


def hub_snapshot(repository: str, patterns: tuple[str, ...], *, fetch: bool = True) -> Path:
    """The folder of a hub repository's files of these patterns: from the cache or, with `fetch`, fetched into it.

    Raises:
      ImportError: huggingface_hub is not installed.
      FileNotFoundError: no hub id, or neither cached nor reachable (HF_HUB_OFFLINE=1 keeps to the cache).
    """
    if not _is_hub_id(repository):
        raise FileNotFoundError(f"`source` must be a folder, a file or a hub id; got {repository!r}, which is none.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as missing:
        raise ImportError(
            f"`source` {repository!r} is no local file, and huggingface_hub is not installed. pip install rope-jax[hf]."
        ) from missing
    try:
        # Not file by file: it asks the hub once, and where that fails neither waits nor asks again.
        return Path(snapshot_download(repository, allow_patterns=list(patterns), local_files_only=not fetch))
    except Exception as error:
        raise FileNotFoundError(
            f"`source` must be a local path or a hub id; got {repository!r}, which is neither here nor reachable there "
            f"({type(error).__name__}). Check its name, the network, HF_HUB_OFFLINE, and whether it needs a login."
        ) from error


def _is_hub_id(name: str) -> bool:
    return HUB_ID.fullmatch(name) is not None and not name.endswith((".json", ".gguf", ".safetensors"))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, of which readers would take the first or the last of two equal keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:80]!r} stands twice")
    return found


def _check_numbers(value: Any, path: str) -> None:
    """Refuse whole numbers beyond every float: no setting is one, and arithmetic stumbles over them."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_numbers(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_numbers(inner, f"{path}[{index}]")
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(f"`{path}` must be a number that a float can hold; got one of {value.bit_length()} bits.")


def _text_model(raw: dict[str, Any]) -> dict[str, Any]:
    inner = next((raw[key] for key in TEXT if isinstance(raw.get(key), dict)), None)
    if inner is None:
        return raw
    # Files of composite models written on the way from the flat to the split form state the rope fields outside.
    outer = {key: raw[key] for key in ("model_type", *ROPE_KEYS) if raw.get(key) is not None}
    return outer | {key: value for key, value in inner.items() if value is not None or key not in outer}
