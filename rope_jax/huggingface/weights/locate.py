"""Where a checkpoint is: a folder, a GGUF file, or the cached snapshot of a hub id."""

import os
import re
from pathlib import Path

from rope_jax.huggingface.source import checked_path, hub_snapshot, reading
from rope_jax.huggingface.weights.safetensors_folder import PICKLES, SINGLE, refused_pickle

GGUF = ".gguf"
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"),
)
FILES = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", *TOKENIZER_FILES)


def locate(source: str | os.PathLike[str], *, fetch: bool = True) -> Path:
    """The folder, or the GGUF file, that a source names; without `fetch`, what is on this machine.

    Raises:
      TypeError: no path.
      FileNotFoundError: no such file or folder, or a hub id that is neither cached nor reachable.
      ValueError: a file that is no checkpoint by itself, pickles among them, which are never opened.
    """
    path = checked_path(source)
    with reading(path):
        # The empty string is a path too, that of the working directory.
        folder, file = path.is_dir() and bool(os.fspath(source)), path.is_file()
    if folder:
        return path
    if file:
        if path.suffix == GGUF:
            return path
        if path.suffix in PICKLES:
            raise ValueError(refused_pickle(path))
        raise ValueError(
            f"`source` must be a folder, a {GGUF} file or a hub id; got the file {path}. Name the folder that holds it."
        )
    return hub_snapshot(os.fspath(source), FILES, fetch=fetch)


def checked_folder(folder: Path) -> Path:
    """A folder that holds a configuration."""
    with reading(folder):
        found = (folder / "config.json").is_file()
    if not found:
        raise FileNotFoundError(
            f"`source` must hold a config.json beside its {SINGLE}; got {folder} without one. Add the configuration."
        )
    return folder


def gguf_parts(path: Path) -> tuple[Path, ...]:
    """All files of a GGUF, which may be split, in order."""
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    return (path,) if split is None else tuple(sorted(path.parent.glob(f"{split[1]}-?????-of-{split[2]}.gguf")))
