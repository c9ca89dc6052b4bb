"""The rules between the settings of an experiment, checked before anything is computed or written."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from rope_jax.experiment.settings import DataConfig, ExperimentConfig, ModelConfig

LONGEST_NAME = 100  # characters
LONGEST_PATH = 255  # bytes of one name, on the usual file systems


def validate(config: ExperimentConfig) -> None:
    """Checks every setting against its range and against the others; the method expressions are checked elsewhere.

    Raises:
        ValueError: the first broken rule, as setting, rule, value and cure.
    """
    for path, number in _numbers(dataclasses.asdict(config)):
        _require(math.isfinite(number), path, "be finite", number, "Give a number.")
    _ranges(config)
    _checkpoint(config)
    _model(config)
    _sweep(config)
    _finetune(config)
    if config.data.task == "passkey":
        _passkey(config)
    else:
        _text(config)


def _require(holds: bool, path: str, rule: str, value: object, cure: str) -> None:
    if not holds:
        raise ValueError(f"`{path}` must {rule}; got {value!r}. {cure}")


def _numbers(tree: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every float of a nested value with its dotted path."""
    if isinstance(tree, float):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield from _numbers(value, f"{path}.{key}" if path else str(key))


def _distinct(values: tuple[Any, ...], path: str) -> None:
    _require(len(set(values)) == len(values), path, "hold each entry once", values, "Delete the repeated one.")


def _ranges(config: ExperimentConfig) -> None:
    """Settings that have a range of their own."""
    name, seeds = config.name, config.seeds
    plain = bool(name.strip()) and not set(name) & set("/\\") and name not in (".", "..") and name.isprintable()
    _require(plain, "name", "be a plain folder name", name, "Use letters, digits and dashes.")
    _require(len(name) <= LONGEST_NAME, "name", f"have at most {LONGEST_NAME} characters", name, "Shorten it.")
    _require(len(name.encode()) <= LONGEST_PATH, "name", f"have at most {LONGEST_PATH} bytes", name, "Shorten it.")
    _require(bool(seeds) and min(seeds) >= 0, "seeds", "hold integers from 0 up", seeds, "Write seeds = [0].")
    _distinct(seeds, "seeds")
    tables = {table: getattr(config, table) for table in ("data", "model", "train", "evaluate", "finetune")}
    from_zero = {"train.warmup", "finetune.steps", "finetune.warmup"}
    from_zero |= {"train.steps"} if config.starts_trained else set()
    for table, settings in tables.items():
        for key, value in dataclasses.asdict(settings).items():
            path = f"{table}.{key}"
            if type(value) is int:
                least = 0 if path in from_zero else 1
                _require(value >= least, path, f"be at least {least}", value, "Raise it.")
    train = config.train
    for path, rate in (("train", train.learning_rate), ("finetune", config.finetune.learning_rate)):
        rule = "be above 0 and at most 1"
        _require(0 < rate <= 1, f"{path}.learning_rate", rule, rate, "3e-3 trains the small models here.")
    _require(train.clip > 0, "train.clip", "be above 0", train.clip, "Use 1.0, or a large number for no clipping.")
    _require(train.weight_decay >= 0, "train.weight_decay", "be at least 0", train.weight_decay, "0 turns it off.")
    _require(0 < train.b2 < 1, "train.b2", "lie between 0 and 1", train.b2, "Use 0.95.")
    fraction = train.final_fraction
    _require(0 <= fraction <= 1, "train.final_fraction", "lie in [0, 1]", fraction, "Use 0.05.")
    warms = config.starts_trained or train.warmup < train.steps
    _require(warms, "train.warmup", f"be below train.steps = {train.steps}", train.warmup, "Lower it.")
    rule = "be a multiple of 4, since losses are reported by quarters of it"
    _require(train.length % 4 == 0, "train.length", rule, train.length, "Round it up.")


def _checkpoint(config: ExperimentConfig) -> None:
    """With a checkpoint nothing is shaped or trained from the start; without one, nothing can be exported."""
    if not config.starts_trained:
        rule = "be false without a checkpoint, whose form it has"
        _require(not config.finetune.export, "finetune.export", rule, True, "Set model.checkpoint, or leave it out.")
        return
    defaults = dataclasses.asdict(ModelConfig(checkpoint=config.model.checkpoint))
    for name, value in dataclasses.asdict(config.model).items():
        if name not in ("remat", "dtype"):
            rule = "be left out with model.checkpoint, which has its own shape"
            _require(value == defaults[name], f"model.{name}", rule, value, "Delete the line.")
    steps = config.train.steps
    rule = "be 0 with model.checkpoint, which is trained already"
    _require(steps == 0, "train.steps", rule, steps, "Write steps = 0; finetune.steps trains it further.")
    rule = "be false while finetune.steps is 0"
    exports = config.finetune.steps > 0 or not config.finetune.export
    _require(exports, "finetune.export", rule, True, "Set finetune.steps, or leave it out.")
    once = config.trains or config.data.task == "passkey" or len(config.seeds) == 1
    rule = "hold one entry where nothing is drawn: a checkpoint reads the same windows under each"
    _require(once, "seeds", rule, config.seeds, "Write seeds = [0].")


def _model(config: ExperimentConfig) -> None:
    """The decoder: heads, rotary width, layer groups."""
    model = config.model
    rule = f"divide model.heads = {model.heads}"
    _require(model.heads % model.kv_heads == 0, "model.kv_heads", rule, model.kv_heads, "Use heads, or 1.")
    width = model.rotary_fraction * model.head_dim
    near = round(width)
    rule = f"give an even rotary width from 2 to model.head_dim = {model.head_dim}, not {width:g}"
    even = abs(width - near) <= 1e-6 and near % 2 == 0 and 2 <= near <= model.head_dim
    _require(even, "model.rotary_fraction", rule, model.rotary_fraction, "Use 1.0 and an even model.head_dim.")
    _require(model.theta > 1, "model.theta", "be above 1", model.theta, "Use 10000.")
    if model.softcap is not None:
        _require(model.softcap > 0, "model.softcap", "be above 0", model.softcap, "Leave it out for none.")
    odd = model.positional == "sinusoidal" and model.embed % 2 == 1
    _require(not odd, "model.embed", "be even for sinusoidal positions", model.embed, "Add 1.")
    _require(bool(model.pattern), "model.pattern", "name at least one group", model.pattern, 'Write pattern = "G".')
    named = (("windows", tuple(model.windows)), ("thetas", tuple(model.thetas)), ("no_rope", model.no_rope))
    for key, groups in named:
        for group in groups:
            rule = f"name groups of model.pattern = {model.pattern!r}"
            fits = len(group) == 1 and group in model.pattern
            _require(fits, f"model.{key}", rule, group, "Use one of its letters.")
    _distinct(model.no_rope, "model.no_rope")
    for group, window in model.windows.items():
        _require(window >= 1, f"model.windows.{group}", "be at least 1", window, "Leave it out for no window.")
    for group, theta in model.thetas.items():
        _require(theta > 1, f"model.thetas.{group}", "be above 1", theta, "Use 10000.")
        turns = model.positional == "rope" and group not in model.no_rope
        _require(turns, f"model.thetas.{group}", "belong to layers that turn", theta, "Delete it.")


def _sweep(config: ExperimentConfig) -> None:
    """Methods, factors and lengths."""
    methods, factors, multiples = config.sweep.methods, config.sweep.factors, config.sweep.multiples
    _require(bool(methods), "sweep.methods", "name at least one method", methods, 'Write methods = ["Identity()"].')
    _distinct(methods, "sweep.methods")
    others = [method for method in (*methods, *config.finetune.methods) if method.strip() != "Identity()"]
    fits = config.model.positional == "rope" or not others
    rule = f'be only "Identity()" with model.positional = "{config.model.positional}", which has no frequencies'
    _require(fits, "sweep.methods", rule, tuple(others), 'Use positional = "rope" or drop the methods.')
    _require(bool(factors), "sweep.factors", "hold at least one factor", factors, 'Write factors = ["match"].')
    _distinct(factors, "sweep.factors")
    for factor in factors:
        _require(factor == "match" or float(factor) >= 1, "sweep.factors", "be at least 1", factor, 'Or use "match".')
    rule = "be quarters above 0, such as 0.5, since losses are reported by quarters of train.length"
    for multiple in multiples:
        _require(multiple > 0 and float(4 * multiple).is_integer(), "sweep.multiples", rule, multiple, "Round it.")
    increasing = all(low < high for low, high in itertools.pairwise(multiples))
    _require(1 in multiples and increasing, "sweep.multiples", "increase and hold 1", multiples, "Write [1, 2, 4, 8].")


def _finetune(config: ExperimentConfig) -> None:
    """The further steps at a longer length."""
    tuning = config.finetune
    if tuning.steps == 0:
        rule = "be empty while finetune.steps is 0"
        cure = "Set finetune.steps, or empty the list with a bare --finetune.methods."
        _require(not tuning.methods, "finetune.methods", rule, tuning.methods, cure)
        return
    rule = "name at least one method while finetune.steps is above 0"
    _require(bool(tuning.methods), "finetune.methods", rule, tuning.methods, 'Write methods = ["YaRN()"].')
    _distinct(tuning.methods, "finetune.methods")
    rule = f"be below finetune.steps = {tuning.steps}"
    _require(tuning.warmup < tuning.steps, "finetune.warmup", rule, tuning.warmup, "Lower it.")
    rule = f"divide train.batch = {config.train.batch}, so that a step sees as many tokens"
    _require(config.train.batch % tuning.multiple == 0, "finetune.multiple", rule, tuning.multiple, "Use 2 or 4.")
    learned = config.model.positional == "learned"
    fits = not learned or tuning.multiple * config.train.length <= config.longest
    rule = "not exceed the largest of sweep.multiples with learned positions"
    _require(fits, "finetune.multiple", rule, tuning.multiple, "Lower it.")


def _passkey(config: ExperimentConfig) -> None:
    """The key, the question and the answer have to fit the shortest length."""
    data, length = config.data, min(config.sweep.lengths(config.train.length))
    if config.starts_trained:
        for name in ("key_symbols", "filler_symbols"):
            rule = "be left out with model.checkpoint, whose keys are numbers among sentences"
            value = getattr(data, name)
            _require(value == getattr(DataConfig(), name), f"data.{name}", rule, value, "Delete the line.")
        return  # whether its words fit a length, its tokenizer says
    needed = 2 * data.key_length + config.evaluate.depths
    cure = f"Use at least {needed} for the shortest length, or a shorter data.key_length."
    rule = f"hold two keys of {data.key_length} tokens and {config.evaluate.depths} different depths"
    _require(length >= needed, "train.length", rule, length, cure)
    _require(data.key_symbols >= 2, "data.key_symbols", "be at least 2", data.key_symbols, "Use 32.")


def _text(config: ExperimentConfig) -> None:
    """The held-out text has to hold the longest window and its last target."""
    data, needed = config.data, config.longest + 1
    rule = 'be false for data.task = "text", which asks for no answers'
    _require(not config.evaluate.generate, "evaluate.generate", rule, True, "Leave it out.")
    _require(bool(data.source), "data.source", 'be "stdlib", a file or a glob', data.source, "Name one.")
    rule = f"hold a window of the longest length and its last target, {needed} tokens"
    holds = not config.trains or data.held_out_tokens >= needed
    _require(holds, "data.held_out_tokens", rule, data.held_out_tokens, "Raise it.")
