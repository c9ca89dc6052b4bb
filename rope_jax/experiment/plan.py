"""The plan of a sweep: every cell, in the order in which they run, before anything is computed or written."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rope_jax.attention.score_maps import ScoreMap
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.export import exported_rope
from rope_jax.experiment.methods import Method, parse_method
from rope_jax.experiment.model import Schedules, Subject
from rope_jax.experiment.published import Checkpoint, subject_of
from rope_jax.experiment.results import cell_key
from rope_jax.experiment.train import base_stage, tuning_stage
from rope_jax.schedule import FrequencySchedule

PLAIN = parse_method("Identity()")
TRUNCATED = "truncated"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number of a sweep: what was trained, how it is called, at which length, and what is measured."""

    phase: str
    seed: int
    metric: str
    length: int
    method: str
    label: str
    factor: float
    factor_rule: str
    tuned_method: str | None = None
    tuned_factor: float | None = None
    calls: Method = PLAIN
    """The parsed method that `schedules` builds the frequencies with; not part of the row."""

    def row(self) -> dict[str, Any]:
        """The fields of the row that identify the cell."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "calls"}
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def weights(self) -> tuple[int, str | None, float | None]:
        """Which weights the cell needs: (seed, method they were tuned with, factor)."""
        return self.seed, self.tuned_method, self.tuned_factor

    def transform(self, config: ExperimentConfig) -> Callable[..., FrequencySchedule]:
        """The frequency transform of the cell."""
        return self.calls.transform(factor=self.factor, original_length=config.train.length)

    def schedules(self, config: ExperimentConfig, subject: Subject, length: int | None = None) -> Schedules:
        """What the decoder is called with: layer group -> schedule."""
        return subject.schedules(self.transform(config), length=length or self.length, layers=self.calls.layers)

    def score_map(self, config: ExperimentConfig) -> ScoreMap | None:
        """What far keys are rotated by instead, None for their own distance."""
        return self.calls.score_map(factor=self.factor, original_length=config.train.length)

    def query_scale(self, config: ExperimentConfig) -> Callable[[Any], Any] | None:
        """The rule that scales queries by position."""
        return self.calls.query_scale(original_length=config.train.length)

    def scoring(self, config: ExperimentConfig, subject: Subject) -> dict[str, Any]:
        """What the decoder is called with besides the schedules: score map and query scales, by layer group."""
        return {
            "score_map": subject.mapped(self.score_map(config), self.calls.layers),
            "query_scale": subject.scaled(self.query_scale(config), self.calls.layers),
        }

    def tuned_transform(self, config: ExperimentConfig) -> Callable[..., FrequencySchedule]:
        """The frequency transform that the weights of the cell are tuned with."""
        return self.calls.transform(factor=self.tuned_factor or 1.0, original_length=config.train.length)


def plan(config: ExperimentConfig, subject: Subject | None = None) -> list[Cell]:
    """Every cell of the sweep: seed x phase x method x factor x length x metric, each key once.

    A method that takes no factor (it has none, or it was written out) has one cell per length. Tuned weights are
    evaluated with the method they were tuned with; "match" is then never below the multiple they were tuned at. Of a
    checkpoint there is no cell of base training.

    Args:
      config: the experiment.
      subject: its model; made of the config when left out.

    Raises:
      ValueError: a method does not parse or does not fit the model; two methods mean the same; a stride that does not
        divide the trained and the longest length; too few windows for a standard error; a tuned model that cannot be
        exported.
    """
    subject = subject or subject_of(config)
    _check(config, subject)
    cells: dict[str, Cell] = {}
    for seed in config.seeds:
        for cell in (*_base(config, seed), *_tuned(config, seed)):
            cells.setdefault(cell_key(config, cell.row()), cell)
    published = Checkpoint(config, subject) if config.finetune.export else None
    # Built here and thrown away, so that what cannot be built is refused before the first step.
    for cell in cells.values():
        try:
            cell.schedules(config, subject)
            cell.scoring(config, subject)
            if published is not None and cell.metric == "training":
                rope = exported_rope(subject, cell.tuned_transform(config), cell.calls.layers)
                reached = config.train.length * config.finetune.multiple
                published.check_saved(rope, reached=reached)
        except (TypeError, ValueError, OverflowError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{_entry(config, cell)}: {error}") from error
    return list(cells.values())


def work(config: ExperimentConfig, cell: Cell) -> float:
    """Roughly what a cell costs, in tokens passed forward; a training step counts three times its tokens."""
    if cell.metric == "training":
        stage = base_stage(config) if cell.phase == "base" else tuning_stage(config)
        return 3.0 * stage.tokens
    evaluate = config.evaluate
    if cell.metric == "truncated_loss":
        moves = 1 + (config.longest - config.train.length) // evaluate.truncation_stride
        return float(evaluate.windows * (moves + 1) * config.train.length)
    items = evaluate.windows if cell.metric == "loss" else evaluate.depths * evaluate.trials
    return float(items * cell.length)


def _entry(config: ExperimentConfig, cell: Cell) -> str:
    """The entry of the config that a cell's method stands in: `sweep.methods[1]` and its text."""
    table = "sweep" if cell.phase == "base" else "finetune"
    methods = config.sweep.methods if table == "sweep" else config.finetune.methods
    places = [index for index, written in enumerate(methods) if parse_method(written) == cell.calls]
    return f"`{table}.methods[{places[0]}]`, {methods[places[0]]}" if places else f"`{table}.methods`, {cell.label}"


def _base(config: ExperimentConfig, seed: int) -> Iterator[Cell]:
    common: dict[str, Any] = {"phase": "base", "seed": seed}
    if not config.starts_trained:
        yield _training(config, common, PLAIN, 1.0, config.train.length)
    if config.data.task == "text":
        yield _truncation(config, common, PLAIN, 1.0)
    for written in config.sweep.methods:
        yield from _evaluations(config, common, parse_method(written), least=1.0)


def _tuned(config: ExperimentConfig, seed: int) -> Iterator[Cell]:
    multiple = float(config.finetune.multiple)
    for written in config.finetune.methods if config.finetune.steps else ():
        method = parse_method(written)
        factor = _factor(method, multiple)
        common: dict[str, Any] = {
            "phase": "tuned",
            "seed": seed,
            "tuned_method": method.text(original_length=config.train.length),
            "tuned_factor": factor,
        }
        yield _training(config, common, method, factor, config.train.length * config.finetune.multiple)
        if config.data.task == "text":
            yield _truncation(config, common, method, factor)
        yield from _evaluations(config, common, method, least=multiple)


def _training(config: ExperimentConfig, common: dict[str, Any], method: Method, factor: float, length: int) -> Cell:
    text = method.text(original_length=config.train.length)
    rule: dict[str, Any] = {"label": method.label, "factor_rule": "fixed", "metric": "training"}
    return Cell(**common, **rule, length=length, method=text, factor=factor, calls=method)


def _truncation(config: ExperimentConfig, common: dict[str, Any], method: Method, factor: float) -> Cell:
    label = "last L tokens, plain" if common["phase"] == "base" else "last L tokens, the better of plain and tuned"
    rule: dict[str, Any] = {"label": label, "factor_rule": "fixed", "metric": "truncated_loss", "method": TRUNCATED}
    return Cell(**common, **rule, length=config.longest, factor=factor, calls=method)


def _evaluations(config: ExperimentConfig, common: dict[str, Any], method: Method, least: float) -> Iterator[Cell]:
    """Every factor and length of one method under one set of weights; `least` is the smallest matching factor."""
    metric = "loss" if config.data.task == "text" else "passkey_accuracy"
    text = method.text(original_length=config.train.length)
    named: dict[str, Any] = {"method": text, "label": method.label, "calls": method}
    factors = config.sweep.factors
    if not method.takes_factor:
        # One cell per length; in a sweep that matches factors to lengths it is listed among those that match.
        factors = ("match",) if "match" in factors else (1.0,)
    for factor in factors:
        rule = "match" if factor == "match" and method.written_factor is None else "fixed"
        lengths = config.sweep.lengths(config.train.length)
        for multiple, length in zip(config.sweep.multiples, lengths, strict=True):
            # A window shorter than the trained length is not stretched.
            value = max(least, float(multiple)) if factor == "match" else float(factor)
            yield Cell(
                **common,
                **named,
                metric=metric,
                length=length,
                factor=_factor(method, value),
                factor_rule=rule,
            )


def _factor(method: Method, factor: float) -> float:
    """The factor as it is recorded: the one written in the method if there is one, 1 for a method that takes none."""
    return factor if method.takes_factor else method.written_factor or 1.0


def _check(config: ExperimentConfig, subject: Subject) -> None:
    """Rules that need the methods."""
    length, stride = config.train.length, config.evaluate.truncation_stride
    if config.data.task == "text" and (length % stride or config.longest % stride):
        also = "" if length % stride else f" and the longest length, {config.longest}"
        raise ValueError(
            f"`evaluate.truncation_stride` must divide train.length = {length}{also}; got {stride}. "
            "Use a smaller power of 2."
        )
    if config.data.task == "text" and config.evaluate.windows < 2:
        raise ValueError("`evaluate.windows` must be at least 2, for a standard error; got 1. 48 is a fair start.")
    for table, methods in (("sweep", config.sweep.methods), ("finetune", config.finetune.methods)):
        seen: list[tuple[Method, str, str]] = []
        for written in methods:
            method = parse_method(written)
            text = method.text(original_length=length)
            # As numbers 4 and 4.0 are the same, as texts they are not.
            for known, same, first in seen:
                if text == same or method == known:
                    raise ValueError(
                        f"`{table}.methods` must differ; got {first!r} and {written!r}, both {text}. Delete one."
                    )
            seen.append((method, text, written))
            if table == "finetune" and not method.frequencies_only:
                raise ValueError(
                    f"`finetune.methods` must edit frequencies alone; got {written!r}. Score maps and logit scales are "
                    "for sweep.methods, on weights that they did not train."
                )
            if text != "Identity()":
                subject.check_reach(method.layers, f"`{table}.methods`", written, scales=method.scales_only)
    if config.finetune.steps and subject.scaled(None) is not None:
        raise ValueError(
            f"`finetune.steps` must be 0 for a checkpoint that scales its queries by position, which training does not "
            f"apply; got {config.finetune.steps}. Sweep it as it is."
        )
