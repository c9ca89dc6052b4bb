"""The programs of a run, lowered on one CPU from shapes alone, and figures of a whole one."""

import jax
import pytest

from rope_jax.experiment.settings import ModelConfig
from rope_jax.experiment.tpu.figures import figures_of
from rope_jax.experiment.tpu.programs import Lowering, lowered
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.settings import OptimizerConfig, RunConfig, StageConfig

CONFIG = RunConfig(
    "tiny",
    (StageConfig("short", 16, 2), StageConfig("long", 32, 2, transform="YaRN()"), StageConfig("read", 64, 0)),
    tokens_per_batch=64,
    vocab=64,
    model=ModelConfig(embed=16, layers=2, heads=2, kv_heads=1, head_dim=8, mlp=32),
    optimizer=OptimizerConfig(warmup=1),
)


def made(what: str, stage: str | None = None) -> Lowering:
    return lowered(open_run(CONFIG), jax.devices()[:1], what=what, stage=stage)


def test_the_longest_stage_that_trains_is_taken() -> None:
    found = made("evaluate")
    assert (found.stage.name, found.rows, found.length) == ("long", 2, 32)
    assert made("evaluate", "read").length == 64


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="`stage` must be one of short, long, read; got 'longer'"):
        made("step", "longer")


def test_decoding_takes_one_token_a_row_and_gives_its_cache_back() -> None:
    program = made("decode").lowered
    (cache, _, _, tokens, _), _ = program.in_avals
    assert tokens.shape == (2, 1)
    assert cache.k.shape == (2, 2, 32, 1, 8)
    _, longer = program.out_info
    assert longer.k.shape == cache.k.shape


def test_a_step_donates_its_state_and_multiplies_by_every_weight() -> None:
    figures = figures_of(made("step").lowered.compile())
    model = CONFIG.model
    inner, side = model.heads * model.head_dim, model.kv_heads * model.head_dim
    layer = model.embed * (2 * inner + 2 * side) + 3 * model.embed * model.mlp
    weights = model.layers * layer + CONFIG.vocab * model.embed
    assert figures.memory.aliased >= 3 * 4 * weights
    assert figures.memory.arguments > figures.memory.aliased
    # Twice a weight and token forwards, twice that backwards; attention comes on top, with at most its whole square.
    products = 6 * weights * 64
    square = 3 * 2 * 2 * (2 * 32 * 32 * inner) * model.layers
    assert products < figures.flops <= products + square + 2 * CONFIG.vocab * model.embed * 64
    assert figures.certain and figures.kernels == {} and figures.collectives == ()
    assert 0 < figures.bytes.rotation < figures.bytes.whole
