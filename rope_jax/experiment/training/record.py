"""record.json: what every stage of a run saw and reached."""

import json
import os
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from rope_jax.experiment.provenance import commit, device_name, versions
from rope_jax.experiment.training.config import bearing
from rope_jax.experiment.training.stages import factor_of, original_length, thetas_of
from rope_jax.experiment.training.start import Run
from rope_jax.experiment.training.step import State
from rope_jax.experiment.training.transitions import evaluated_schedules

FILE = "record.json"


def stage_entry(
    run: Run,
    index: int,
    state: State,
    trained_on: dict[str, Any] | None,
    losses: dict[str, dict[str, float]],
) -> dict[str, Any]:
    """What is recorded of a stage at its end.

    Args:
      run: the run.
      index: of the stage.
      state: at its end.
      trained_on: what its feed counted; None for a stage that only evaluates.
      losses: length -> held-out losses.
    """
    stage, thetas = run.config.stages[index], thetas_of(run, index)
    recipe = stage.data or run.config.data
    schedules = evaluated_schedules(run, index, state, stage.length) or {}
    return {
        "name": stage.name,
        "length": stage.length,
        "rows": run.config.rows(stage),
        "steps": stage.steps,
        "transform": stage.transform,
        "factor": factor_of(run, index),
        "original_length": original_length(run, index),
        "theta": next(iter(thetas.values()), None) if len(set(thetas.values())) < 2 else thetas,
        "learnable": stage.learnable,
        "pose": None if not recipe.pose_chunks else {"chunks": recipe.pose_chunks, "target": stage.pose_target},
        "schedules": {
            group: None
            if schedule is None
            else {"inv_freq": schedule.float64().tolist(), "attention_scale": float(schedule.attention_scale)}
            for group, schedule in schedules.items()
        },
        "trained_on": trained_on,
        "evaluation": losses,
    }


def run_header(run: Run, mesh: Mesh, parameters: int, origin: str | None) -> dict[str, Any]:
    """What is recorded of the run as a whole.

    Args:
      run: the run.
      mesh: that it is trained on.
      parameters: weights of the model.
      origin: the digest of its checkpoint, None without one.
    """
    config, subject = run.config, run.subject
    started_from = {"name": subject.name, "digest": origin, "trained_length": subject.own_length}
    return {
        "name": config.name,
        "checkpoint": None if origin is None else started_from,
        "parameters": parameters,
        "tokens_per_batch": config.tokens_per_batch,
        "mesh": dict(mesh.shape),
        "device": device_name(),
        "versions": versions(),
        "commit": commit(),
        "config": bearing(config),
    }


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Writes the record of a run into its folder, whole or not at all."""
    draft = folder / f"{FILE}.draft"
    draft.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(draft, folder / FILE)
