"""A run's settings read from TOML and the command line, and what of them a checkpoint must be resumed under."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rope_jax.experiment.config import toml_table
from rope_jax.experiment.overrides import overridden_by
from rope_jax.experiment.strict import from_table
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.experiment.training.start import Run

LEFT_OUT = (
    # Its digest tells a checkpoint apart, wherever it lies.
    *("model.checkpoint", "name", "output", "export", "mesh", "compute", "checkpoint", "log", "distributed"),
    *("model.remat", "evaluate.every", "evaluate.windows", "evaluate.batch"),
)
"""What a run may be resumed with another value of: where and how it computes and is watched, not what."""


def load_run(path: str | Path, overrides: Sequence[str] = ()) -> Run:
    """Reads a TOML file, applies dotted overrides such as `--stages.0.steps 40`, opens the model and checks the result.

    The `data` of a stage holds what differs from the `data` of the run.

    Args:
        path: the TOML file; its tables are the fields of `RunConfig`.
        overrides: command-line words; `--help` prints every setting with its value and leaves.

    Raises:
        OSError, TypeError, ValueError, SystemExit: as `load_config` and `open_run` do.

    Example:
        >>> load_run("configs/train/quickstart.toml", ["--stages.0.steps", "400"]).config.steps  # doctest: +SKIP
        400
    """
    return open_run(read_run(path, overrides))


def read_run(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The settings as `load_run` reads them, not yet checked against each other: that would take up a device.

    Processes that train together must have met before any of them does.
    """
    table = toml_table(Path(path))
    whole, stages = table.get("data", {}), table.get("stages", [])
    if not isinstance(stages, list) or not stages or not all(isinstance(stage, Mapping) for stage in stages):
        raise ValueError(
            f"`stages` must be tables of a run of {path}; got {stages or 'none'}. Write [[stages]] with a name, a "
            "length and steps; a sweep over methods is run with scripts/extrapolate.py."
        )
    if not isinstance(whole, Mapping):
        raise TypeError(f"`data` must be a table; got {whole!r}. Write [data] with its settings.")
    merged = [
        {**stage, "data": {**whole, **stage["data"]}} if isinstance(stage.get("data"), Mapping) else stage
        for stage in stages
    ]
    config = from_table(RunConfig, {**table, "stages": merged})
    if overrides:
        import tyro

        # Without subcommands, settings of a stage's own data are options as all others are.
        changed = overridden_by(overrides, config, config=(tyro.conf.AvoidSubcommands,))
        config = _handed_down(changed, config, [stage.get("data", {}) for stage in stages])
    return config


def _handed_down(changed: RunConfig, read: RunConfig, own: Sequence[Mapping[str, Any]]) -> RunConfig:
    """The settings with what was overridden in the data of the run in that of stages too, where theirs is the run's."""
    stages = []
    for stage, before, table in zip(changed.stages, read.stages, own, strict=True):
        if stage.data is not None and before.data is not None:
            names = [field.name for field in dataclasses.fields(stage.data) if field.name not in table]
            left = [name for name in names if getattr(stage.data, name) == getattr(before.data, name)]
            given = {name: getattr(changed.data, name) for name in left}
            stage = dataclasses.replace(stage, data=dataclasses.replace(stage.data, **given))
        stages.append(stage)
    return dataclasses.replace(changed, stages=tuple(stages))


def bearing(config: RunConfig) -> dict[str, Any]:
    """The settings that bear on the weights, by dotted path, equal to themselves after a trip through JSON.

    Example:
        >>> from rope_jax.experiment.training.settings import StageConfig
        >>> bearing(RunConfig("a", (StageConfig("one", 64, 600),)))["stages[0].length"]
        64
    """
    plain = json.loads(json.dumps(dataclasses.asdict(config), allow_nan=False))
    return {
        path: value
        for path, value in _leaves(plain)
        if not any(path == name or path.startswith(f"{name}.") for name in LEFT_OUT)
    }


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, plain value), depth first."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    else:
        yield path, value
