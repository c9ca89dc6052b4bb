"""Models that were loaded, fine-tuned and saved here, opened by transformers: the same logits on both sides."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import rope_jax as rj
from tests.golden import recipe

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

import torch
from transformers import AutoModelForCausalLM

from scripts.make_golden import transformers_model

SPREAD = 1e-4
STEPS = 3
FACTOR = 4.0
TRAINED = np.random.default_rng(3).integers(0, recipe.VOCAB, (2, 2 * recipe.ORIGINAL))


def stretched(model: Any) -> rj.ModelRope:
    """YaRN in place of the model's own method, in every layer that turns by the base of the whole."""
    thetas = {spec.theta for spec in model.rope.specs.values() if spec is not None}
    yarn = rj.YaRN(factor=FACTOR, original_length=recipe.ORIGINAL, beta_fast=8.0)
    specs = {
        group: replace(spec, transform=yarn) if spec is not None and spec.theta == max(thetas) else spec
        for group, spec in model.rope.specs.items()
    }
    return replace(model.rope, specs=specs)


def fine_tuned(model: Any) -> float:
    """A few steps of Adam on the model's decoder; how far the loss fell."""
    schedules = model.schedules()
    optimizer = nnx.Optimizer(model.decoder, optax.adam(1e-2), wrt=nnx.Param)
    # optax counts its steps in integers and takes powers of floats by them.
    with jax.numpy_dtype_promotion("standard"):
        losses = [float(_step(model.decoder, optimizer, schedules, jnp.asarray(TRAINED))) for _ in range(STEPS)]
    return losses[0] - losses[-1]


@nnx.jit
def _step(decoder: Any, optimizer: Any, schedules: Any, token_ids: Any) -> Any:
    def loss(decoder: Any) -> Any:
        positions = jnp.arange(token_ids.shape[1] - 1, dtype=jnp.int32)[None]
        logits = decoder(token_ids[:, :-1], schedules, positions=positions)
        return optax.softmax_cross_entropy_with_integer_labels(logits, token_ids[:, 1:]).mean()

    value, gradients = nnx.value_and_grad(loss)(decoder)
    optimizer.update(decoder, gradients)
    return value


def opened(folder: Path) -> Any:
    """As a user of transformers opens it, every weight accounted for."""
    # Its annotations know nothing of the report.
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    model, report = loaded
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def agree(model: Any, folder: Path) -> None:
    """Below, at, and four times the original length."""
    for length in (recipe.ORIGINAL // 2, recipe.ORIGINAL, 4 * recipe.ORIGINAL):
        token_ids = np.random.default_rng(length).integers(0, recipe.VOCAB, (1, length))
        with torch.no_grad():
            expected = opened(folder)(torch.tensor(token_ids)).logits.numpy()
        error, spread = np.max(np.abs(np.asarray(model.logits(token_ids)) - expected)), np.ptp(expected)
        assert error <= SPREAD * spread, f"{error:.2e} of a spread of {spread:.3g} at {length} tokens"


@pytest.mark.parametrize("name", recipe.CONFIGS)
def test_fine_tuned_with_yarn(name: str, tmp_path: Path) -> None:
    transformers_model(name, "default").save_pretrained(tmp_path / "theirs")
    model = rj.load_pretrained(tmp_path / "theirs")
    model = replace(model, rope=stretched(model))
    before = jax.tree.map(jnp.copy, nnx.state(model.decoder))
    assert fine_tuned(model) > 0.05
    moved = jax.tree.map(lambda one, other: float(jnp.max(jnp.abs(one - other))), before, nnx.state(model.decoder))
    assert min(jax.tree.leaves(moved)) > 0
    rj.save_pretrained(model, tmp_path / "ours")
    rope = opened(tmp_path / "ours").config.rope_parameters
    # Phi-3's class takes no YaRN: there it leaves as the lists that give the same frequencies.
    assert rope.get("full_attention", rope)["rope_type"] == ("longrope" if name == "phi3" else "yarn")
    agree(model, tmp_path / "ours")
    again = rj.load_pretrained(tmp_path / "ours")
    token_ids = TRAINED[:1, : recipe.ORIGINAL // 2]
    np.testing.assert_array_equal(again.logits(token_ids), model.logits(token_ids))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("name", recipe.CONFIGS)
def test_every_rope_type_of_a_family(name: str, version: Literal[4, 5], tmp_path: Path) -> None:
    for kind in recipe.kinds(name):
        transformers_model(name, kind).save_pretrained(tmp_path / kind)
        model = rj.load_pretrained(tmp_path / kind)
        rj.save_pretrained(model, tmp_path / f"ours-{kind}", version=version, max_shard_bytes=20_000)
        agree(model, tmp_path / f"ours-{kind}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(dtype: str, tmp_path: Path) -> None:
    transformers_model("llama", "yarn").save_pretrained(tmp_path / "theirs")
    rj.save_pretrained(rj.load_pretrained(tmp_path / "theirs"), tmp_path / "ours", dtype=dtype)
    assert {parameter.dtype for parameter in AutoModelForCausalLM.from_pretrained(tmp_path / "ours").parameters()} == {
        getattr(torch, dtype)
    }
    agree(rj.load_pretrained(tmp_path / "ours"), tmp_path / "ours")
