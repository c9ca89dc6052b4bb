"""Tensors of a folder of safetensors files: one file, or shards under an index."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rope_jax.huggingface.source import read_json, reading
from rope_jax.huggingface.weights.wording import brief, shown, some

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F32", "BF16", "F16")
# Of a shard beside its index, never a path.
PLAIN = re.compile(r"[^/\\\0]+\.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
CURE = "Fetch the file again, or save the model again."


@dataclass(frozen=True)
class Stored:
    """Where a tensor is, and its shape."""

    file: Path
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SafetensorsFolder:
    """A folder's tensors. Files are opened for one tensor and closed again: mapped pages count as memory in use."""

    tensors: Mapping[str, Stored]

    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.tensors[name].shape

    def read(self, name: str) -> np.ndarray:
        """The numbers of a tensor, in memory of their own."""
        with _opened(self.tensors[name].file) as file:
            return np.asarray(file.get_tensor(name))


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold a folder's weights, in order of name.

    Raises:
      FileNotFoundError: no weights, or a shard that the index names is missing.
      ValueError: pickled weights alone, both forms at once, a malformed index.
    """
    single, index = folder / SINGLE, folder / INDEX
    with reading(folder):
        alone, sharded, names = single.is_file(), index.is_file(), sorted(path.name for path in folder.iterdir())
    if alone and sharded:
        raise ValueError(f"`source` must hold {SINGLE} or {INDEX}; got both in {folder}. Remove the stale one.")
    if alone:
        return (single,)
    if sharded:
        return tuple(folder / name for name in sorted(set(_weight_map(index).values())))
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise ValueError(refused_pickle(folder / pickles[0]))
    raise FileNotFoundError(f"`source` must hold {SINGLE} or {INDEX}; got {folder} without either. Add the weights.")


def refused_pickle(path: Path) -> str:
    """Why pickled weights are never opened, and what to do."""
    return (
        f"`source` must hold safetensors; got {path}, a pickle, which may run any code when it is opened. "
        "Convert it where you trust it: save_pretrained of transformers writes safetensors."
    )


def open_folder(folder: Path) -> SafetensorsFolder:
    """A folder's tensors, from the headers of its files.

    Raises:
      FileNotFoundError, ValueError: as `weight_files`; a file that is cut off or no safetensors, a dtype other than
        float32, bfloat16 and float16, shards that do not hold what the index says.
    """
    found: dict[str, Stored] = {}
    files = weight_files(folder)
    for path in files:
        for name, stored in _header(path):
            if name in found:
                raise ValueError(
                    f"`source` must hold every tensor once; got {shown(name)} in {found[name].file.name} and "
                    f"{path.name}. {CURE}"
                )
            found[name] = stored
    if files[0].name != SINGLE:
        _check_index(_weight_map(folder / INDEX), found)
    return SafetensorsFolder(MappingProxyType(found))


def _weight_map(index: Path) -> dict[str, str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"`source` must hold an index with a `weight_map`; got {index}. {CURE}")
    astray = [file for file in names.values() if not (isinstance(file, str) and PLAIN.fullmatch(file))]
    if astray:
        raise ValueError(
            f"`source` must hold an index that names safetensors files of its folder; got {brief(astray[0])} in "
            f"{index}. {CURE}"
        )
    missing = sorted({file for file in names.values() if not (index.parent / file).is_file()})
    if missing:
        raise FileNotFoundError(
            f"`source` must hold every shard of {index.name}; got {index.parent} without {some(missing)}. "
            "Fetch the missing files."
        )
    return dict(names)


def _check_index(index: Mapping[str, str], found: Mapping[str, Stored]) -> None:
    astray = sorted(name for name in {*index, *found} if name not in found or index.get(name) != found[name].file.name)
    if astray:
        name = astray[0]
        holder = found[name].file.name if name in found else "no shard"
        raise ValueError(
            f"`source` must hold what its index says; got {shown(name)} in {holder}, in the index under "
            f"{index.get(name, 'no file')} ({len(astray)} such tensors). {CURE}"
        )


def _header(path: Path) -> Iterator[tuple[str, Stored]]:
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118  (the file is no mapping)
            part = file.get_slice(name)
            if part.get_dtype() not in DTYPES:
                raise ValueError(
                    f"`source` must hold float32, bfloat16 or float16; got {part.get_dtype()} for {shown(name)} in "
                    f"{path}. "
                    "Load the checkpoint that is not quantized."
                )
            yield name, Stored(path, tuple(part.get_shape()))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as missing:
        raise ImportError(
            f"`source` {path} needs safetensors, which is not installed. pip install rope-jax[hf]."
        ) from (missing)
    with reading(path), path.open("rb"):
        pass  # Only to see that it may be read, of which the package says that there is no file.
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"`source` must hold whole safetensors files; got {path}: {shown(str(error))}. {CURE}"
        ) from error
