"""An experiment's settings: read from TOML and the command line, checked, and identified by a hash."""

import codecs
import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rope_jax.experiment.overrides import overridden_by
from rope_jax.experiment.rules import validate
from rope_jax.experiment.settings import (
    DataConfig,
    EvaluateConfig,
    ExperimentConfig,
    FinetuneConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
)
from rope_jax.experiment.strict import from_table

__all__ = [
    "DataConfig",
    "EvaluateConfig",
    "ExperimentConfig",
    "FinetuneConfig",
    "ModelConfig",
    "SweepConfig",
    "TrainConfig",
    "bearing",
    "config_dict",
    "config_hash",
    "load_config",
    "overridden",
    "validate",
]

CURE_FOLDER = "Name a TOML file, or write --checkpoint in front of the folder of a model."
CURE_TEXT = "If it is the text to read, write --text in front of it."
LEFT_OUT = ("model.checkpoint", "train.checkpoint_every", "train.log_every", "finetune.methods", "finetune.export")
# Left out while empty or false: results from before these settings existed keep their hash.
UNUSED = ("model.thetas", "evaluate.generate")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads a TOML file, applies dotted overrides such as `--train.steps 40`, and validates the result.

    Args:
        path: the TOML file; its tables are the fields of `ExperimentConfig`.
        overrides: command-line words; `--help` prints every setting with its value and leaves.

    Returns:
        The validated config.

    Raises:
        OSError: no such file, or a folder.
        ValueError: not TOML in UTF-8, an unknown key (the nearest one is named), an override that does not parse, a
            number that is not finite, or a broken rule.
        TypeError: a value of another type than its field.
        SystemExit: `--help`.

    Example:
        >>> load_config("configs/quickstart.toml", ["--train.steps", "40"]).train.steps  # doctest: +SKIP
        40
    """
    return overridden(from_table(ExperimentConfig, toml_table(Path(path))), overrides)


def overridden(config: ExperimentConfig, overrides: Sequence[str]) -> ExperimentConfig:
    """A config with dotted overrides applied, validated; raises as `load_config` does."""
    if overrides:
        config = overridden_by(overrides, config)
    validate(config)
    return config


def toml_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file; raises OSError or ValueError as `load_config` does."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"`config` must be a file; got {str(path)!r}, which is absent. See configs/.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"`config` must be a file; got the folder {str(path)!r}. {CURE_FOLDER}") from None
    if content.startswith(codecs.BOM_UTF8):
        raise ValueError(f"`config` must begin without a byte order mark; got one in {path}. Save it as plain UTF-8.")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        rule = f"`config` must be UTF-8 text; got {error.reason} at byte {error.start} of {path}"
        raise ValueError(f"{rule}. Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"`config` must be TOML; got {path}: {error}. Mend it there. {CURE_TEXT}") from None


def config_dict(config: ExperimentConfig) -> dict[str, Any]:
    """The config as nested dicts and lists, equal to itself after a trip through JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), allow_nan=False))
    return plain


def config_hash(config: ExperimentConfig) -> str:
    """Sha256 (64 hex digits) of everything that bears on the number in a cell.

    Left out are `name`, `output`, how often a run logs and saves, and the lists that only say which cells there are
    (seeds, methods, factors, multiples): a method or a seed added to a finished sweep keeps the finished cells. The
    longest length stays in for text, since it decides which files are held out, and so do lengths below the trained
    one, which the truncation baseline is measured at. So does not the path of a checkpoint: its digest tells it apart.
    """
    return hashlib.sha256(json.dumps(bearing(config_dict(config)), sort_keys=True).encode()).hexdigest()


def bearing(plain: dict[str, Any]) -> dict[str, Any]:
    """The settings of a `config_dict` that `config_hash` is made of, by dotted path.

    Example:
        >>> bearing(config_dict(ExperimentConfig(name="a")))["train.steps"]
        600
    """
    parts = {
        f"{table}.{key}": value
        for table in ("data", "model", "train", "evaluate", "finetune")
        for key, value in plain[table].items()
    }
    for path in (*LEFT_OUT, *(path for path in UNUSED if not parts.get(path))):
        parts.pop(path, None)
    if plain["data"]["task"] == "text":
        lengths = [round(multiple * plain["train"]["length"]) for multiple in plain["sweep"]["multiples"]]
        parts["longest"] = max(lengths)
        shorter = [length for length in lengths if length < plain["train"]["length"]]
        parts |= {"shorter": shorter} if shorter else {}
    return parts
