"""The tables of record: what failed, what it cost, where the time went, how it was set up."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rope_jax.experiment.report.read import Row, Run
from rope_jax.experiment.report.series import called, positional_of
from rope_jax.experiment.report.tables import Entry, Table
from rope_jax.experiment.report.words import NONE, counted, duration, extent, short_numbers


def failures_table(failed: Iterable[Row]) -> Table:
    """Every cell that failed, and why."""
    rows = tuple(
        (
            Entry(_name(row), short_numbers(str(row["method"]))),
            Entry(f"{row['phase']}, seed {row['seed']}"),
            Entry(str(row["metric"])),
            Entry(f"{row['length']:,}" if row["length"] else NONE),
            Entry(str(row["error"]), "finished at a later try" if row["finished_later"] else ""),
        )
        for row in failed
    )
    return Table("Cells that failed.", ("method", "weights", "metric", "length", "reason"), rows)


def cost_table(rows: Sequence[Row]) -> Table:
    """Time, tokens and machine: training, fine-tuning, then everything that was evaluated."""
    runs = [row for row in rows if row["metric"] == "training"]
    cells = [row for row in rows if row["metric"] != "training"]
    body = []
    for title, phase in (("training", "base"), ("fine-tuning", "tuned")):
        own = [row for row in runs if row["phase"] == phase]
        if own:
            total = extent(row.get("tokens") for row in own)
            body.append((Entry(title), Entry(counted(len(own), "run")), _seconds(own), Entry(total), _steps(own)))
    if cells:
        body.append(
            (Entry("evaluation"), Entry(counted(len(cells), "measurement")), _seconds(cells), Entry(NONE), Entry(NONE))
        )
    body.append((Entry("in all"), Entry(NONE), _seconds(rows), Entry(NONE), Entry(NONE)))
    caption = f"What it cost, on {' and '.join(distinct(rows, 'device')) or 'a device that the rows do not name'}."
    if {row["phase"] for row in runs} == {"base", "tuned"}:
        caption += " The tokens of fine-tuning include those of the training before it."
    return Table(caption, ("part", "how many", "time", "tokens of a run", "steps of a run"), tuple(body))


def timings_table(rows: Sequence[Row]) -> Table:
    """Seconds of every method's cells, longest first."""
    named: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        named.setdefault((row["phase"], row["metric"], _name(row)), []).append(row)
    timed = sorted(named.items(), key=lambda item: -_total(item[1]))
    body = tuple(
        (Entry(name), Entry(phase), Entry(metric), Entry(str(len(cells))), _seconds(cells))
        for (phase, metric, name), cells in timed
    )
    return Table("Where the time went.", ("method", "weights", "metric", "measurements", "time"), body)


def settings_tables(config: dict[str, Any]) -> list[Table]:
    """The resolved config, a table per section."""
    flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
    sections = {"experiment": flat} | {key: value for key, value in config.items() if isinstance(value, dict)}
    model = sections.get("model") or {}
    if model.get("checkpoint"):
        # The other settings of a model are those of one that is trained here.
        sections["model"] = {name: model[name] for name in ("checkpoint", "remat", "dtype") if name in model}
    return [
        Table(name, ("setting", "value"), tuple((Entry(key), Entry(_written(value))) for key, value in section.items()))
        for name, section in sections.items()
    ]


def provenance_table(results: Run) -> Table:
    """Commit, configuration, device and package versions of the rows that are shown."""
    rows = results.rows or results.failed
    found = {
        "commit": distinct(rows, "commit") or ["not recorded"],
        "configuration": distinct(rows, "config_hash"),
        "checkpoint": list(dict.fromkeys(str(row["checkpoint"]["digest"]) for row in rows if row.get("checkpoint"))),
        "device": distinct(rows, "device"),
    }
    for row in rows:
        for package, version in (row.get("versions") or {}).items():
            known = found.setdefault(package, [])
            known += [str(version)] if str(version) not in known else []
    if not found["checkpoint"]:
        del found["checkpoint"]
    body = tuple((Entry(name), Entry(", ".join(values) or NONE)) for name, values in found.items())
    return Table("Where the numbers come from.", ("what", "value"), body)


def distinct(rows: Iterable[Row], name: str) -> list[str]:
    """Every value that the rows have under a name, in order of appearance."""
    return list(dict.fromkeys(str(row[name]) for row in rows if row.get(name) is not None))


def _name(row: Row) -> str:
    return called(str(row["label"]), positional_of(row), row.get("checkpoint") is not None)


def _seconds(rows: Sequence[Row]) -> Entry:
    return Entry(duration(_total(rows)))


def _total(rows: Iterable[Row]) -> float:
    return math.fsum(row.get("seconds") or 0.0 for row in rows)


def _steps(rows: Sequence[Row]) -> Entry:
    return Entry(extent(row.get("steps") for row in rows))


def _written(value: object) -> str:
    if value is None or value is True or value is False:
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(map(_written, value)) or "none"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_written(entry)}" for key, entry in value.items()) or "none"
    return str(value) or "none"
