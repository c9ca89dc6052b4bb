"""The engine beside a loop written by hand, in one process and in turns: tokens per second, and the share of the input.

python scripts/bench_training.py configs/train/quickstart.toml --rounds 5
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from rope_jax import nn
from rope_jax.experiment.training.config import load_run
from rope_jax.experiment.training.feed import Feed
from rope_jax.experiment.training.loop import StageLoop
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.transitions import trained_schedules

DONE_IN_STEPS = 10


def by_hand(session: Session, seed: int) -> Callable[[], Any]:
    """Steps of the same model as one would write them without the engine: one batch that lies on the device."""
    stage = session.config.stages[0]
    rows, length = session.config.rows(stage), stage.length
    graphdef, params = nnx.split(nn.Decoder(session.shape, rngs=nnx.Rngs(seed)))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=0.1))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, session.vocab, (rows, length + 1)).astype(np.int32))
    schedules = trained_schedules(session.run, 0, {})
    positions = jnp.arange(length, dtype=jnp.int32)[None]

    def loss_of(params: Any, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graphdef, params)(tokens[:, :-1], schedules, positions=positions)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Any, opt: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens)
        updates, opt = optimizer.update(gradients, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    jitted, state = jax.jit(step, donate_argnums=(0, 1)), [params, optimizer.init(params)]

    def some_steps() -> Any:
        for _ in range(DONE_IN_STEPS):
            state[0], state[1], loss = jitted(*state, tokens)
        return loss.block_until_ready()

    return some_steps


def by_engine(session: Session, feed: Feed) -> Callable[[], Any]:
    """The same number of steps of the engine, batches made and placed, as its loop has them."""
    loop = StageLoop(session, 0)
    state, _ = session.begin()
    schedules = trained_schedules(session.run, 0, state)
    held = [state]

    def some_steps() -> Any:
        for _ in range(DONE_IN_STEPS):
            held[0], metrics = loop.step(held[0], schedules, next(feed))
        return metrics["loss"].block_until_ready()

    return some_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--rounds", type=int, default=5, help="of both forms in turn, each of 10 steps; default 5")
    words, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        run = load_run(words.config, ["--output", folder, "--log.no-tensorboard", *overrides])
        with (
            Session(run) as session,
            jax.set_mesh(session.mesh),
            Feed(run.config, 0, session.mesh, session.text.corpora[0]) as feed,
        ):
            forms = {"engine": by_engine(session, feed), "by hand": by_hand(session, run.config.seed)}
            seconds: dict[str, list[float]] = {name: [] for name in forms}
            for form in forms.values():
                form()
            made = feed.seconds
            for _ in range(words.rounds):
                for name, form in forms.items():
                    start = time.perf_counter()
                    form()
                    seconds[name].append((time.perf_counter() - start) / DONE_IN_STEPS)
            made = (feed.seconds - made) / (words.rounds * DONE_IN_STEPS)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    print(
        json.dumps(
            {
                "tokens_per_second": {
                    name: round(run.config.tokens_per_batch / each) for name, each in medians.items()
                },
                "engine_over_by_hand": round(medians["by hand"] / medians["engine"], 3),
                "input_share_of_step": round(made / medians["engine"], 4),
            }
        )
    )


if __name__ == "__main__":
    main()
