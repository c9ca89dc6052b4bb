"""Settings: the strict reader, overrides, rules, and the hash."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rope_jax.experiment.config import (
    DataConfig,
    EvaluateConfig,
    ExperimentConfig,
    FinetuneConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
    config_dict,
    config_hash,
    load_config,
    validate,
)


def written(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text('name = "a"\n' + text, encoding="utf-8")
    return path


def test_defaults_fill_what_is_left_out(tmp_path):
    assert load_config(written(tmp_path, "")) == ExperimentConfig(name="a")


def test_values_arrive_in_their_types(tmp_path):
    text = """
    seeds = [3, 1]
    [model]
    theta = 500
    softcap = 30
    pattern = "LG"
    windows = { L = 16 }
    no_rope = ["G"]
    [sweep]
    factors = ["match", 4]
    """
    config = load_config(written(tmp_path, text))
    assert config.seeds == (3, 1)
    assert (config.model.theta, type(config.model.theta)) == (500.0, float)
    assert (config.model.softcap, type(config.model.softcap)) == (30.0, float)
    assert config.model.windows == {"L": 16}
    assert config.model.no_rope == ("G",)
    assert config.sweep.factors == ("match", 4.0)
    assert type(config.sweep.factors[1]) is float


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[train]\nstesp = 4", ["`train.stesp`", "`train.steps`"]),
        ("sweeep = {}", ["`sweeep`", "`sweep`"]),
        ("[train]\nzzzzqqq = 4", ["`train.zzzzqqq`", "Settings here", "learning_rate"]),
        ("[train]\nlearning_rate = nan", ["`train.learning_rate`", "finite", "nan"]),
        ("[model]\ntheta = inf", ["`model.theta`", "finite", "inf"]),
    ],
)
def test_an_unknown_key_or_number_is_refused_by_its_path(tmp_path, text, words):
    with pytest.raises(ValueError, match="`") as error:
        load_config(written(tmp_path, text))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[train]\nsteps = "40"', ["`train.steps`", "an integer", "'40'"]),
        ("[train]\nsteps = 40.0", ["`train.steps`", "an integer", "40.0"]),
        ("[train]\nsteps = true", ["`train.steps`", "an integer", "True"]),
        ("[train]\nlearning_rate = true", ["`train.learning_rate`", "a number", "True"]),
        ("[model]\ntied = 1", ["`model.tied`", "true or false", "1"]),
        ('[model]\nlayout = "neox"', ["`model.layout`", '"half" or "interleaved"', "'neox'"]),
        ('[sweep]\nmultiples = [1, "2"]', ["`sweep.multiples[1]`", "a number", "'2'"]),
        ('[sweep]\nfactors = ["mach"]', ["`sweep.factors[0]`", '"match"', "'mach'"]),
        ("[sweep]\nfactors = [true]", ["`sweep.factors[0]`", "True"]),
        ('[model]\nwindows = { G = "8" }', ["`model.windows.G`", "an integer", "'8'"]),
        ("train = 3", ["`train`", "a table", "3"]),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_path(tmp_path, text, words):
    with pytest.raises(TypeError) as error:
        load_config(written(tmp_path, text))
    assert all(word in str(error.value) for word in words)


def test_a_missing_name_is_refused(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text("seeds = [0]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"`name` must be given"):
        load_config(path)


def test_overrides_are_dotted_and_come_last(tmp_path):
    path = written(tmp_path, "[train]\nsteps = 500\nwarmup = 5")
    words = ["--train.steps", "40", "--sweep.factors", "match", "2", "--model.windows", "G", "5", "--output", "out"]
    config = load_config(path, words)
    assert (config.train.steps, config.train.warmup) == (40, 5)
    assert config.sweep.factors == ("match", 2.0)
    assert config.model.windows == {"G": 5}
    assert config.output == "out"


def test_overrides_obey_the_rules(tmp_path):
    with pytest.raises(ValueError, match=r"`train.learning_rate` must be finite"):
        load_config(written(tmp_path, ""), ["--train.learning_rate", "nan"])


BROKEN = [
    ({"name": "a/b"}, "name"),
    ({"name": "a\\b"}, "name"),
    ({"name": "a\0b"}, "name"),
    ({"name": ".."}, "name"),
    ({"name": "a" * 101}, "name"),
    ({"name": "\U0001f600" * 64}, "name"),
    ({"seeds": ()}, "seeds"),
    ({"seeds": (1, 1)}, "seeds"),
    ({"seeds": (-1,)}, "seeds"),
    ({"model": ModelConfig(head_dim=33)}, "model.rotary_fraction"),
    ({"model": ModelConfig(rotary_fraction=0.3)}, "model.rotary_fraction"),
    ({"model": ModelConfig(rotary_fraction=2.0)}, "model.rotary_fraction"),
    ({"model": ModelConfig(rotary_fraction=0.0)}, "model.rotary_fraction"),
    ({"model": ModelConfig(kv_heads=3)}, "model.kv_heads"),
    ({"model": ModelConfig(layers=0)}, "model.layers"),
    ({"model": ModelConfig(theta=1.0)}, "model.theta"),
    ({"model": ModelConfig(softcap=0.0)}, "model.softcap"),
    ({"model": ModelConfig(pattern="")}, "model.pattern"),
    ({"model": ModelConfig(windows={"L": 8})}, "model.windows"),
    ({"model": ModelConfig(windows={"G": 0})}, "model.windows.G"),
    ({"model": ModelConfig(no_rope=("N",))}, "model.no_rope"),
    ({"model": ModelConfig(positional="sinusoidal", embed=127)}, "model.embed"),
    ({"model": ModelConfig(positional="alibi"), "sweep": SweepConfig(methods=("YaRN()",))}, "sweep.methods"),
    ({"sweep": SweepConfig(methods=())}, "sweep.methods"),
    ({"sweep": SweepConfig(methods=("YaRN()", "YaRN()"))}, "sweep.methods"),
    ({"sweep": SweepConfig(factors=())}, "sweep.factors"),
    ({"sweep": SweepConfig(factors=(0.5,))}, "sweep.factors"),
    ({"sweep": SweepConfig(factors=(2.0, 2.0))}, "sweep.factors"),
    ({"sweep": SweepConfig(multiples=())}, "sweep.multiples"),
    ({"sweep": SweepConfig(multiples=(2, 4))}, "sweep.multiples"),
    ({"sweep": SweepConfig(multiples=(0, 1))}, "sweep.multiples"),
    ({"sweep": SweepConfig(multiples=(1, 1.3))}, "sweep.multiples"),
    ({"sweep": SweepConfig(multiples=(1, 4, 2))}, "sweep.multiples"),
    ({"train": TrainConfig(length=66)}, "train.length"),
    ({"train": TrainConfig(steps=10, warmup=10)}, "train.warmup"),
    ({"train": TrainConfig(learning_rate=0.0)}, "train.learning_rate"),
    ({"train": TrainConfig(learning_rate=1e300)}, "train.learning_rate"),
    ({"finetune": FinetuneConfig(learning_rate=1.1)}, "finetune.learning_rate"),
    ({"train": TrainConfig(b2=1.0)}, "train.b2"),
    ({"train": TrainConfig(clip=0.0)}, "train.clip"),
    ({"train": TrainConfig(final_fraction=1.5)}, "train.final_fraction"),
    ({"train": TrainConfig(weight_decay=-0.1)}, "train.weight_decay"),
    ({"evaluate": EvaluateConfig(windows=0)}, "evaluate.windows"),
    ({"finetune": FinetuneConfig(methods=("YaRN()",))}, "finetune.methods"),
    ({"finetune": FinetuneConfig(steps=40)}, "finetune.methods"),
    ({"finetune": FinetuneConfig(steps=40, methods=("YaRN()", "YaRN()"))}, "finetune.methods"),
    ({"finetune": FinetuneConfig(steps=40, multiple=3, methods=("YaRN()",))}, "finetune.multiple"),
    ({"finetune": FinetuneConfig(steps=10, methods=("YaRN()",))}, "finetune.warmup"),
    ({"data": DataConfig(held_out_tokens=512)}, "data.held_out_tokens"),
    ({"data": DataConfig(task="passkey", key_length=29)}, "train.length"),
    ({"data": DataConfig(task="passkey", key_symbols=1)}, "data.key_symbols"),
    ({"data": DataConfig(task="passkey", filler_symbols=0)}, "data.filler_symbols"),
]


@pytest.mark.parametrize(("change", "setting"), BROKEN)
def test_a_broken_rule_names_its_setting(change, setting):
    with pytest.raises(ValueError, match=rf"^`{setting.replace('.', '[.]')}` must .*; got .*\. .*\.$"):
        validate(dataclasses.replace(ExperimentConfig(name="a"), **change))


@pytest.mark.parametrize(
    "change",
    [
        {"model": ModelConfig(rotary_fraction=0.25)},
        {"name": "a" * 100},
        {"train": TrainConfig(learning_rate=1.0)},
        {"model": ModelConfig(positional="none")},
        {"data": DataConfig(held_out_tokens=513)},
        {"data": DataConfig(task="passkey", key_length=28)},
        {"finetune": FinetuneConfig(steps=40, methods=("YaRN()",))},
        {"sweep": SweepConfig(multiples=(1,), factors=(1.0, 4.0))},
    ],
)
def test_the_edges_of_the_rules_are_allowed(change):
    validate(dataclasses.replace(ExperimentConfig(name="a"), **change))


def test_the_dict_is_json():
    config = ExperimentConfig(name="a", model=ModelConfig(windows={"G": 8}))
    assert json.loads(json.dumps(config_dict(config))) == config_dict(config)
    assert config_dict(config)["sweep"]["multiples"] == [1, 2, 4, 8]


SAME: list[dict[str, Any]] = [
    {"name": "b"},
    {"output": "elsewhere"},
    {"seeds": (1,)},
    {"train": TrainConfig(log_every=1, checkpoint_every=7)},
    {"sweep": SweepConfig(methods=("YaRN()",), factors=(4.0,), multiples=(1, 8))},
]
OTHER: list[dict[str, Any]] = [
    {"train": TrainConfig(steps=601)},
    {"model": ModelConfig(theta=9_999.0)},
    {"model": ModelConfig(windows={"G": 8})},
    {"data": DataConfig(source="somewhere.txt")},
    {"evaluate": EvaluateConfig(windows=47)},
    {"finetune": FinetuneConfig(learning_rate=1e-4)},
    {"sweep": SweepConfig(multiples=(1, 16))},
]


@pytest.mark.parametrize("change", SAME)
def test_the_hash_ignores_what_bears_on_no_number(change):
    config = ExperimentConfig(name="a")
    assert config_hash(dataclasses.replace(config, **change)) == config_hash(config)


def test_the_hash_tells_apart_what_bears_on_numbers():
    configs = [dataclasses.replace(ExperimentConfig(name="a"), **change) for change in [{}, *OTHER]]
    assert len({config_hash(config) for config in configs}) == len(configs)
