"""Every part of every weight family against transformers' own, each fed with what transformers fed its own."""

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from tests.golden import recipe

pytest.importorskip("torch", reason="the parity extra is not installed: torch")
pytest.importorskip("transformers", reason="the parity extra is not installed: transformers")

import torch

from scripts.make_golden import transformers_model

SPREAD = 1e-4
PRE = {"input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm"}
BOTH = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}
POST = {"post_attention_layernorm": "attention_post_norm", "post_feedforward_layernorm": "mlp_post_norm"}
NORMS = {"gemma2": BOTH, "gemma3_text": BOTH, "olmo2": POST}


class Recorder:
    """What went into and came out of every module of a model, by the module's name; the rotated queries and keys."""

    def __init__(self, model: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, tuple[Any, Any]] = {}
        self.rotated: list[tuple[np.ndarray, np.ndarray]] = []
        for path, module in model.named_modules():
            module.register_forward_hook(self._hook(path), with_kwargs=True)
        family = recipe.family(name).removesuffix("_text")
        modeling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        eager = modeling.eager_attention_forward

        def recorded(module: Any, query: Any, key: Any, *rest: Any, **kwargs: Any) -> Any:
            self.rotated.append(tuple(part.detach().numpy().swapaxes(1, 2) for part in (query, key)))
            return eager(module, query, key, *rest, **kwargs)

        monkeypatch.setattr(modeling, "eager_attention_forward", recorded)

    def _hook(self, path: str) -> Any:
        def record(module: Any, inputs: Any, kwargs: Any, output: Any) -> None:
            given = inputs[0] if inputs else kwargs.get("hidden_states", kwargs.get("input_ids"))
            made = output[0] if isinstance(output, tuple) else output
            if isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor):
                self.calls[path] = given.detach().numpy(), made.detach().numpy()

        return record

    def layer(self, index: int) -> dict[str, tuple[Any, Any]]:
        """The calls inside one layer, by their name there; those of the layer itself under ""."""
        prefix = next(path for path in self.calls if path.endswith(f"layers.{index}"))
        inside = {path.removeprefix(prefix).removeprefix("."): call for path, call in self.calls.items()
                  if path == prefix or path.startswith(prefix + ".")}  # fmt: skip
        return {path.replace("attention.", "self_attn."): call for path, call in inside.items()}


def agree(got: Any, expected: np.ndarray, what: str) -> None:
    error, spread = np.max(np.abs(np.asarray(got) - expected)), np.ptp(expected)
    assert error <= SPREAD * spread, f"{what}: {error:.2e} of a spread of {spread:.3g}"


@pytest.mark.parametrize("name", recipe.CONFIGS)
@pytest.mark.parametrize("kind", ["default", "yarn", "longrope"])
def test_every_part(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind not in recipe.kinds(name):
        pytest.skip(f"transformers refuses {kind} for {name}")
    other = transformers_model(name, kind)
    other.save_pretrained(tmp_path)
    seen = Recorder(other, name, monkeypatch)
    token_ids, positions = np.asarray(recipe.TOKEN_IDS), np.asarray([recipe.FAR] * 2)
    with torch.no_grad():
        ids = torch.tensor(token_ids)
        logits = other(ids, position_ids=torch.tensor(positions), attention_mask=torch.ones_like(ids)).logits.numpy()

    model = rj.load_pretrained(tmp_path)
    decoder, config = model.decoder, model.decoder.config
    schedules = model.schedules(length=4 * recipe.ORIGINAL)
    agree(decoder.embedding[...][token_ids] * config.input_scale, seen.layer(0)[""][0], "embedding")
    for index, group in enumerate(config.layer_groups):
        _check_layer(jax.tree.map(lambda leaf, at=index: leaf[at], decoder.blocks), seen, name, index, model,
                     schedules[group], jnp.asarray(positions, jnp.int32))  # fmt: skip
    final = next(call for path, call in seen.calls.items() if path.endswith(("model.norm", "final_layer_norm")))
    agree(decoder.norm(jnp.asarray(final[0])), final[1], "final norm")
    agree(decoder.unembed(jnp.asarray(final[1])), logits, "logits")


def _check_layer(block: Any, seen: Recorder, name: str, index: int, model: Any, schedule: Any, positions: Any) -> None:
    calls, config = seen.layer(index), model.decoder.config
    attention = next(path for path in calls if path in ("self_attn", "attention"))
    for theirs, ours in NORMS.get(recipe.family(name), PRE).items():
        agree(getattr(block, ours)(jnp.asarray(calls[theirs][0])), calls[theirs][1], f"layer {index} {ours}")
    given, made = calls[attention]
    table = None if schedule is None else rj.rotary_table(schedule, positions)
    q, k, v = block.attention.project(jnp.asarray(given))
    if table is not None:
        q, k = (rj.rotate(part, table, layout=config.layout) for part in (q, k))
    agree(q, seen.rotated[index][0], f"layer {index} rotated queries")
    agree(k, seen.rotated[index][1], f"layer {index} rotated keys")
    window = dict(config.windows).get(config.layer_groups[index])
    got = block.attention.read(q, k, v, q_positions=positions, kv_positions=positions, window=window)
    agree(got, made, f"layer {index} attention")
    agree(block.mlp(jnp.asarray(calls["mlp"][0])), calls["mlp"][1], f"layer {index} MLP")
