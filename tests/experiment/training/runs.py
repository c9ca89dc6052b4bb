"""A run that trains in seconds: a model of some thousand weights in three stages on invented words."""

import dataclasses
from pathlib import Path
from typing import Any

from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from rope_jax.experiment.settings import ModelConfig
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.run import Outcome, train
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.settings import (
    CheckpointConfig,
    HeldOutConfig,
    LogConfig,
    OptimizerConfig,
    RunConfig,
    StageConfig,
)
from tests.experiment.tiny import write_corpus

MODEL = ModelConfig(embed=16, layers=2, heads=2, kv_heads=2, head_dim=8, mlp=16)
STAGES = (
    StageConfig("base", 16, 5),
    StageConfig("longer", 32, 4, theta=100_000.0, learnable=True),
    StageConfig("reach", 64, 0, transform="PositionInterpolation()"),
)


def run_config(folder: Path, **changes: Any) -> RunConfig:
    """Three stages at 16, 32 and 64 tokens; the corpus is written where it is missing."""
    corpus = folder / "corpus"
    source = f"{corpus}/*.txt" if corpus.is_dir() else write_corpus(corpus)
    config = RunConfig(
        name="run",
        stages=STAGES,
        output=str(folder / "runs"),
        tokens_per_batch=256,
        model=MODEL,
        data=RecipeConfig(sources=(SourceConfig(path=source),)),
        optimizer=OptimizerConfig(warmup=2),
        evaluate=HeldOutConfig(every=3, windows=4, tokens=3000, batch=2),
        checkpoint=CheckpointConfig(every=2),
        log=LogConfig(every=2, statistics_every=4, tensorboard=False),
    )
    return dataclasses.replace(config, **changes)


def trained(config: RunConfig, devices: Any = None) -> Outcome:
    """Runs a config to its end, or to where it stops."""
    with Session(open_run(config), devices) as session:
        return train(session)


def toml(config: RunConfig) -> str:
    """The config as a TOML file."""
    tables, lines = dataclasses.asdict(config), []
    stages, sources = tables.pop("stages"), tables["data"].pop("sources")
    lines += [f"{key} = {_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *_lines(table)]
            if name == "data":
                for source in sources:
                    lines += ["[[data.sources]]", *_lines(source)]
    for stage in stages:
        lines += ["[[stages]]", *_lines(stage)]
    return "\n".join(lines) + "\n"


def _lines(table: dict[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items() if value is not None]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return "{}" if value == {} else repr(value)
