"""An experiment that runs in seconds: a model of some thousand weights on invented words."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from rope_jax.experiment.config import (
    DataConfig,
    EvaluateConfig,
    ExperimentConfig,
    FinetuneConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
)
from rope_jax.experiment.results import read_results
from rope_jax.experiment.sweep import Sweep

MODEL = ModelConfig(embed=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=16)
TRAIN = TrainConfig(length=16, batch=8, steps=6, warmup=2, checkpoint_every=3, log_every=2)
PASSKEY = DataConfig(task="passkey", key_length=1, key_symbols=4, filler_symbols=4)


def write_corpus(folder: Path) -> str:
    """Eight files of words; returns the glob that finds them."""
    folder.mkdir()
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefgh"), size=random.integers(2, 7))) for _ in range(40)]
    for index in range(8):
        (folder / f"{index}.txt").write_text(" ".join(random.choice(words, size=500)), encoding="utf-8")
    return f"{folder}/*.txt"


def text_config(folder: Path, **changes: Any) -> ExperimentConfig:
    """Text, two methods, lengths 16 and 32, one fine-tune; the corpus is written where it is missing."""
    corpus = folder / "corpus"
    source = f"{corpus}/*.txt" if corpus.is_dir() else write_corpus(corpus)
    config = ExperimentConfig(
        name="tiny",
        output=str(folder / "runs"),
        data=DataConfig(source=source, held_out_tokens=3000),
        model=MODEL,
        train=TRAIN,
        sweep=SweepConfig(methods=("Identity()", "YaRN()"), multiples=(1, 2)),
        evaluate=EvaluateConfig(windows=6, batch=2, truncation_stride=4),
        finetune=FinetuneConfig(steps=3, multiple=2, warmup=1, methods=("YaRN()",)),
    )
    return dataclasses.replace(config, **changes)


def passkey_config(folder: Path, **changes: Any) -> ExperimentConfig:
    """Keys of one token, two methods, lengths 16 and 32, no fine-tune."""
    config = ExperimentConfig(
        name="keys",
        output=str(folder / "runs"),
        data=PASSKEY,
        model=MODEL,
        train=TRAIN,
        sweep=SweepConfig(methods=("Identity()", "PositionInterpolation()"), multiples=(1, 2)),
        evaluate=EvaluateConfig(depths=3, trials=2, batch=4),
    )
    return dataclasses.replace(config, **changes)


def toml(config: ExperimentConfig) -> str:
    """The config as a TOML file."""
    plain = dataclasses.asdict(config)
    lines = [f"{key} = {_value(value)}" for key, value in plain.items() if not isinstance(value, dict)]
    for table, settings in plain.items():
        if isinstance(settings, dict):
            lines += [f"[{table}]"] + [
                f"{key} = {_value(value)}" for key, value in settings.items() if value is not None
            ]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return "{}" if value == {} else repr(value)


def table(folder):
    """The rows without what differs from one run to the next."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_results(folder)]


def run(config):
    with Sweep(config) as sweep:
        return sweep.run()
