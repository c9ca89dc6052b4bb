"""The page: one HTML file that holds its own style and figures and needs nothing from anywhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rope_jax.experiment.report import drawings, passkeys, record, tables, verdict
from rope_jax.experiment.report.headline import headline
from rope_jax.experiment.report.key_headline import key_headline
from rope_jax.experiment.report.limits import limits, missing, unfinished
from rope_jax.experiment.report.origin import in_words, origin_of
from rope_jax.experiment.report.read import Run, read_run
from rope_jax.experiment.report.series import Series, factors_in_words, gather
from rope_jax.experiment.report.words import LEVEL, counted
from rope_jax.experiment.results import FILE

PAGE_NAME = "report.html"


def write_report(folder: Path) -> Path:
    """Write the report of a run from its results.jsonl alone.

    Args:
        folder: holds results.jsonl; figures/*.png and report.html are written into it.

    Returns:
        The path of report.html.

    Raises:
        ResultsError: no results.jsonl, no row in it, or a line that is no row. Nothing is written then.

    Example:
        write_report(Path("runs/quickstart"))
    """
    results = read_run(folder / FILE)
    drawn = {name: drawings.draw_all(group, folder / "figures") for name, group in figures(results).items()}
    path = folder / PAGE_NAME
    # Whole or not at all: a kill must not leave half a page under the page's name.
    draft = path.with_suffix(".draft")
    draft.write_text(render(results, drawn), encoding="utf-8")
    return draft.replace(path)


def figures(results: Run) -> dict[str, list[drawings.Drawing]]:
    """Which figures belong to which part of the page."""
    losses, truncated = gather(results.rows, "loss"), gather(results.rows, "truncated_loss")
    keys, training = gather(results.rows, "passkey_accuracy"), _training(results)
    origin = origin_of(results.rows)
    found = drawings.passkey_drawings(keys, origin)
    main = drawings.main_drawings(losses, truncated, training, "base", origin)
    return {
        "main_figures": main or found,
        "tuned_figures": drawings.main_drawings(losses, truncated, training, "tuned", origin),
        "key_figures": found if main else [],
        "spectra": drawings.spectrum_drawings([*losses, *keys], origin),
    }


def render(results: Run, pictures: Mapping[str, Sequence[drawings.Picture]]) -> str:
    """The page as one string; parts without pictures have none."""
    losses, keys = gather(results.rows, "loss"), gather(results.rows, "passkey_accuracy")
    drawn = {"main_figures": [], "tuned_figures": [], "key_figures": [], "spectra": [], **pictures}
    page: str = _environment().get_template("page.html.jinja").render(**_words(results, losses, keys), **drawn)
    return page


def _words(results: Run, losses: Sequence[Series], keys: Sequence[Series]) -> dict[str, Any]:
    """Everything on the page but the figures."""
    answers = ([_loss_answer(losses)] if losses else []) + ([_key_answer(results, keys)] if keys else [])
    return {
        "name": results.config.get("name", ""),
        "origin": in_words(origin_of(results.rows), results.rows[-1]["trained_length"]) if results.rows else "",
        "answers": answers,
        "meanings": {
            kind: text for answer in answers for kind, text in answer["meaning"].items() if _met(answer, kind)
        },
        "level": LEVEL,
        "factors": factors_in_words([*losses, *keys]),
        "plain_rise": verdict.PLAIN_RISE if any(one.plain for one in losses) else "",
        "main_table": _main_table(results, losses),
        "key_table": tables.passkey_table(keys, passkeys.chance(results.rows), _training(results)) if keys else None,
        "perplexities": _perplexities(losses),
        "cost": record.cost_table(results.rows),
        "timings": record.timings_table(results.rows),
        "settings": record.settings_tables(results.config),
        "failures": record.failures_table(results.failed) if results.failed else None,
        "provenance": record.provenance_table(results),
        "limits": limits(results, losses, keys),
        "missing": missing(results, losses, keys),
        "warning": _warning(results, [*losses, *keys]),
    }


def _loss_answer(losses: Sequence[Series]) -> dict[str, Any]:
    length = verdict.comparison_length(losses)
    groups = _groups(losses, length)
    short, sentence = headline(groups["base"], groups["tuned"], length, losses[0].trained_length)
    return {
        "question": "Does this model use a context longer than it was trained on, or only survive it?",
        "short": short,
        "sentence": sentence,
        "groups": [
            (drawings.PHASES[phase], verdict.classes(group), verdict.remark(group))
            for phase, group in groups.items()
            if group
        ],
        "meaning": verdict.MEANING,
    }


def _key_answer(results: Run, keys: Sequence[Series]) -> dict[str, Any]:
    compared, length = passkeys.comparison(keys)
    guess = passkeys.chance(results.rows)
    phases = {phase: [one for one in keys if one.phase == phase] for phase in drawings.PHASES}
    short, sentence = key_headline(compared, length, guess)
    return {
        "question": "Does this model find a key in a context longer than it was trained on?",
        "short": short,
        "sentence": sentence,
        "groups": [
            (drawings.PHASES[phase], passkeys.classes(group, length, guess), passkeys.remark(group, length))
            for phase, group in phases.items()
            if group
        ],
        "meaning": passkeys.MEANING,
    }


def _warning(results: Run, measured: Sequence[Series]) -> str:
    """One line for the top of the page when it rests on less than was asked for."""
    failed = sum(not row["finished_later"] for row in results.failed)
    said = ["The sweep is not finished."] if unfinished(results.config, measured) else []
    return " ".join(said + ([f"{counted(failed, 'cell')} failed."] if failed else []))


def _met(answer: dict[str, Any], kind: str) -> bool:
    return any(kind == met for _, group, _ in answer["groups"] for met, _ in group)


def _main_table(results: Run, losses: Sequence[Series]) -> tables.Table | None:
    if not losses:
        return None
    length = verdict.comparison_length(losses)
    groups = [(drawings.PHASES[phase], group) for phase, group in _groups(losses, length).items()]
    return tables.main_table(groups, length, results.rows)


def _groups(losses: Sequence[Series], length: int) -> dict[str, tuple[verdict.Standing, ...]]:
    return {phase: verdict.standings(losses, length, phase) for phase in drawings.PHASES}


def _perplexities(losses: Sequence[Series]) -> list[tables.Table]:
    found = []
    for phase, title in drawings.PHASES.items():
        shown = [one for one in losses if one.phase == phase]
        if shown:
            caption = f"{title}: perplexity per token on the same targets at every length."
            found.append(tables.lengths_table(shown, caption, tables.perplexity))
    return found


def _training(results: Run) -> list[dict[str, Any]]:
    return [row for row in results.rows if row["metric"] == "training"]


def _environment() -> Environment:
    loader = PackageLoader("rope_jax.experiment.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
