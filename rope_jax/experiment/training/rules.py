"""The rules between the settings of a run, checked before anything is computed or written."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from rope_jax.attention import BACKENDS
from rope_jax.attention.token_order import check_dealt
from rope_jax.experiment.config import validate
from rope_jax.experiment.recipe.rules import SEEDS, check_batches, check_recipe
from rope_jax.experiment.training.export import check_exportable
from rope_jax.experiment.training.optimizer import stage_starts
from rope_jax.experiment.training.settings import RunConfig, StageConfig
from rope_jax.experiment.training.stages import learned_before, stage_schedules
from rope_jax.experiment.training.start import Run, experiment, started

LARGEST = 2**31
"""Steps, positions and sizes are int32 on the device."""
OPEN = (".shortest", ".longest", "data.seed")
"""Settings that only the host reads, or that have a bound of their own."""


def open_run(config: RunConfig) -> Run:
    """A run with its model, every setting checked against its range and against the others.

    Raises:
        ValueError: the first broken rule, as setting, rule, value and cure.
        ValueError, TypeError, OSError: no such checkpoint, or one that cannot be read.
    """
    _settings(config)
    run = started(config)
    for index, stage in enumerate(config.stages):
        _turning(run, index, stage)
    if config.export:
        check_exportable(run)
    return run


def _settings(config: RunConfig) -> None:
    """All that can be said without the model."""
    for path, number in _numbers(dataclasses.asdict(config)):
        _require(math.isfinite(number), path, "be finite", number, "Give a number.")
        bounded = not isinstance(number, int) or number < (SEEDS if path == "data.seed" else LARGEST)
        _require(bounded or path.endswith(OPEN), path, "be below 2^31", number, "Lower it.")
    _require(bool(config.stages), "stages", "hold a stage", config.stages, "Write [[stages]] with its settings.")
    # The rules of a name and of a model are those of a sweep.
    validate(experiment(config))
    _ranges(config)
    _optimizer(config)
    check_recipe(config.data)
    names = [stage.name for stage in config.stages]
    _require(len(set(names)) == len(names), "stages", "have different names", names, "Rename one.")
    for index, stage in enumerate(config.stages):
        _stage(config, index, stage)


def _require(holds: bool, path: str, rule: str, value: object, cure: str) -> None:
    if not holds:
        raise ValueError(f"`{path}` must {rule}; got {value!r}. {cure}")


def _numbers(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a nested value with its dotted path."""
    if isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _numbers(value, f"{path}.{key}" if path else str(key))


def _ranges(config: RunConfig) -> None:
    """Counts that have a range of their own."""
    from_zero = {"evaluate.every", "checkpoint.keep_every", "log.statistics_every"}
    for table in ("compute", "evaluate", "checkpoint", "log"):
        for key, value in dataclasses.asdict(getattr(config, table)).items():
            if type(value) is int:
                least = 0 if f"{table}.{key}" in from_zero else 1
                _require(value >= least, f"{table}.{key}", f"be at least {least}", value, "Raise it.")
    _require(config.seed >= 0, "seed", "be at least 0", config.seed, "Use 0.")
    _require(config.vocab >= 0, "vocab", "be at least 0", config.vocab, "0 takes that of the tokenizer.")
    rule = "be left out with model.checkpoint, whose embedding has its own rows"
    _require(not (config.vocab and config.model.checkpoint), "vocab", rule, config.vocab, "Delete the line.")
    _require(config.tokens_per_batch >= 1, "tokens_per_batch", "be at least 1", config.tokens_per_batch, "Use 4096.")
    backends = ("auto", *BACKENDS)
    _require(config.compute.backend in backends, "compute.backend", f"be one of {backends}", config.compute.backend, "")
    asked = config.distributed
    rule = "be left out without distributed.coordinator"
    for name, given in (("processes", asked.processes != 0), ("process", asked.process != -1)):
        alone = given and not asked.coordinator
        _require(not alone, f"distributed.{name}", rule, getattr(asked, name), "Give all three, or none.")
    for length in config.evaluate.lengths:
        _require(length >= 1, "evaluate.lengths", "be at least 1", length, "Delete it.")


def _optimizer(config: RunConfig) -> None:
    settings = config.optimizer
    peaks = [("optimizer", settings.learning_rate)]
    peaks += [(f"stages[{i}]", s.learning_rate) for i, s in enumerate(config.stages) if s.learning_rate is not None]
    for path, rate in peaks:
        _require(0 < rate <= 1, f"{path}.learning_rate", "be above 0 and at most 1", rate, "Use 3e-3, or less.")
    rule = "lie in [0, 1]"
    _require(0 <= settings.final_fraction <= 1, "optimizer.final_fraction", rule, settings.final_fraction, "Use 0.05.")
    _require(settings.clip > 0, "optimizer.clip", "be above 0", settings.clip, "Use 1.0, or a large number for none.")
    _require(settings.weight_decay >= 0, "optimizer.weight_decay", "be at least 0", settings.weight_decay, "Use 0.1.")
    _require(settings.epsilon > 0, "optimizer.epsilon", "be above 0", settings.epsilon, "Use 1e-8.")
    for name in ("b1", "b2"):
        value = getattr(settings, name)
        _require(0 < value < 1, f"optimizer.{name}", "lie between 0 and 1", value, "Use 0.9 and 0.95.")


def _stage(config: RunConfig, index: int, stage: StageConfig) -> None:
    path, starts = f"stages[{index}]", stage_starts(config)
    _require(bool(stage.name.strip()), f"{path}.name", "be a name", stage.name, "Call it what it does.")
    _require(stage.length >= 2, f"{path}.length", "be at least 2", stage.length, "A target needs a token before it.")
    _require(stage.steps >= 0, f"{path}.steps", "be at least 0", stage.steps, "0 only evaluates.")
    rule = f"divide tokens_per_batch = {config.tokens_per_batch}"
    fits = config.tokens_per_batch % stage.length == 0
    _require(fits, f"{path}.length", rule, stage.length, "Use a power of two for both.")
    own_curve = stage.schedule == "rewarmed" or starts[index] == 0
    for name in ("learning_rate", "warmup"):
        rule = 'be left out with schedule = "continued", whose curve an earlier stage has started'
        given = getattr(stage, name)
        _require(own_curve or given is None, f"{path}.{name}", rule, given, 'Write schedule = "rewarmed".')
    if own_curve and stage.steps:
        warmup = config.optimizer.warmup if stage.warmup is None else stage.warmup
        rule = f"be from 0 up and below the {stage.steps} steps of the stage"
        where = "optimizer.warmup" if stage.warmup is None else f"{path}.warmup"
        _require(0 <= warmup < stage.steps, where, rule, warmup, f"Lower it, or set {path}.warmup.")
    if stage.theta is not None:
        _require(stage.theta > 1, f"{path}.theta", "be above 1", stage.theta, "Use 10000, or more for more length.")
    if stage.original_length is not None:
        rule = "be at least 1"
        _require(stage.original_length >= 1, f"{path}.original_length", rule, stage.original_length, "Leave it out.")
    if stage.factor is not None:
        _require(stage.factor >= 1, f"{path}.factor", "be at least 1", stage.factor, "Leave it out.")
    data = stage.data or config.data
    check_recipe(data)
    for name in ("tokenizer", "end_token"):
        own, whole = getattr(data, name), getattr(config.data, name)
        _require(own == whole, f"{path}.data.{name}", f"be that of the run, {whole!r}", own, "Leave it out.")
    if stage.pose_target is not None:
        rule = "be at least the length, and go with data.pose_chunks"
        holds = stage.pose_target >= stage.length and data.pose_chunks > 0
        _require(holds, f"{path}.pose_target", rule, stage.pose_target, "Set pose_chunks = 2 in the stage's data.")
    if stage.steps:
        target = (stage.pose_target or stage.length) if data.pose_chunks else None
        check_batches(data, stage.length, config.rows(stage), 0, 1, target)


def _turning(run: Run, index: int, stage: StageConfig) -> None:
    """What turns queries and keys in a stage can be built."""
    path, rope = f"stages[{index}]", run.subject.rope
    _require(
        rope is not None or not stage.learnable, f"{path}.learnable", "be false without rotation", True, "Drop it."
    )
    bases = {spec.theta for spec in rope.specs.values() if spec is not None} if rope is not None else set()
    if stage.theta is not None and len(bases) != 1:
        rule = "be left out where layer groups have bases of their own" if bases else "be left out without rotation"
        cure = 'Change the base of chosen layers with transform = "BaseChange(theta=1e6) @ full".'
        _require(False, f"{path}.theta", rule, stage.theta, cure if bases else "Delete the line.")
    try:
        schedules = stage_schedules(run, index)
        if learned_before(run, index) and schedules:
            # Stand-ins for what will be learned, so that a method which cannot edit them is refused before the run.
            bent = {g: _bent(s.float64()) for g, s in schedules.items() if s is not None}
            stage_schedules(run, index, learned=bent)
    except (ValueError, TypeError, OverflowError) as error:
        if str(error).startswith(f"`{path}."):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"`{path}.transform`, {stage.transform}: {error}{_own_method(run)}") from error


def _own_method(run: Run) -> str:
    """What a method of a stage stands on top of, in words."""
    specs = {} if run.subject.own_rope is None else run.subject.own_rope.specs
    kinds = dict.fromkeys(type(spec.transform).__name__ for spec in specs.values() if spec is not None)
    own = [kind for kind in kinds if kind != "Identity"]
    if not own:
        return ""
    return (
        f" The checkpoint has been edited by {' and '.join(own)} already, which a stage comes on top of; for a stage "
        "in its place, take the rope scaling out of the config.json."
    )


def _bent(inv_freq: Any) -> Any:
    """Frequencies that no single base gives."""
    return np.log(np.maximum(inv_freq, 1e-30)) + 0.05 * np.sin(np.arange(inv_freq.size))


def check_mesh(run: Run, mesh: Mesh | AbstractMesh) -> None:
    """Checks that the mesh divides every batch and the heads.

    Raises:
        ValueError: as `open_run`.
    """
    config = run.config
    sizes = dict(mesh.shape)
    shards, accumulate = sizes["data"] * sizes["fsdp"], config.compute.accumulate
    for index, stage in enumerate(config.stages):
        check_dealt(stage.length, sizes["context"], config.compute.context_order)
        lengths = (stage.length, *(stage.data or config.data).buckets)
        for length in lengths if stage.steps else ():
            rows = config.tokens_per_batch // length
            if rows % (shards * accumulate):
                raise ValueError(
                    f"`stages[{index}].length` must leave rows that mesh.data x mesh.fsdp = {shards} ways and "
                    f"compute.accumulate = {accumulate} parts divide; got {rows} rows of {length} in "
                    f"tokens_per_batch = {config.tokens_per_batch}. Raise tokens_per_batch, or divide tokens of a row "
                    "with mesh.context."
                )
            check_dealt(length, sizes["context"], config.compute.context_order)
    for length in run.lengths:
        check_dealt(length, sizes["context"], config.compute.context_order)
    published = run.subject.published
    heads, kv_heads = config.model.heads, config.model.kv_heads
    if published is not None:
        heads, kv_heads = published.heads, published.attention.kv_count
    for name, count in (("heads", heads), ("kv_heads", kv_heads)):
        rule = f"be a multiple of mesh.tensor = {sizes['tensor']}"
        _require(count % sizes["tensor"] == 0, f"model.{name}", rule, count, "Divide another axis instead.")
