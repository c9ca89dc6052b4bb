"""What the rows cannot tell, and what is not there yet: said on the page rather than left to be guessed."""

from collections.abc import Sequence
from typing import Any

from rope_jax.experiment.report.origin import origin_of
from rope_jax.experiment.report.read import Run
from rope_jax.experiment.report.series import Series, lengths_of
from rope_jax.experiment.report.words import counted, extent, listing, quantity

SMALL = 100_000_000  # parameters


def limits(results: Run, losses: Sequence[Series], passkeys: Sequence[Series]) -> list[str]:
    """Claims that a run of this task, size and number of seeds does not support."""
    said = []
    training = [row for row in results.rows if row["metric"] == "training"]
    origin = origin_of(results.rows)
    parameters = [row["parameters"] for row in training if row.get("parameters")]
    parameters += [origin["parameters"]] if origin else []
    if parameters and max(parameters) < SMALL:
        trained = "" if origin else f" and was trained on {extent(row.get('tokens') for row in training)} tokens"
        said.append(
            f"How a large model would do. This one has {quantity(max(parameters))} parameters{trained}; the order of "
            "methods may differ with size and with longer training."
        )
        if losses:
            said.append(
                "How much a longer context is worth. A model of this size predicts mostly from the nearest tokens, so "
                "even a context that it uses gains it little."
            )
    seeds = {row["seed"] for row in results.rows}
    drawn = origin is None or bool(passkeys) or any(one.phase == "tuned" for one in losses)
    if len(seeds) == 1 and drawn:
        asked = len(set(results.config.get("seeds") or ()))
        there = f"of the {asked} seeds that the settings ask for, one is there" if asked > 1 else "there is one"
        errors = " The intervals say nothing about that." if losses or passkeys else ""
        said.append(f"Whether another seed would agree: {there}.{errors}")
    for measured, what in ((losses, "windows"), (passkeys, "keys")):
        methods = len({one.name for one in measured if one.phase == "base"})
        if methods > 1:
            said.append(
                f"How good the best of {methods} methods is: it was picked on the {what} that it is judged on, which "
                "favours it."
            )
    said += _of_losses(losses)
    if any(one.phase == "tuned" for one in losses):
        said.append(
            "Which method is best after long fine-tuning: this was a short one, with one learning rate for all."
        )
    if any(one.positional == "learned" for one in (*losses, *passkeys)):
        said.append(
            "How well learned positions reach further. Those past the longest length that the weights saw in training "
            "are untrained rows of their table: what is measured there is their random start."
        )
    if passkeys:
        said.append(
            "Whether the model reads. The key is the only one of its kind in the text, so it is found by matching "
            "content, not by understanding what surrounds it."
        )
    return said


def _of_losses(losses: Sequence[Series]) -> list[str]:
    """What losses and their gains leave open."""
    if not losses:
        return []
    said = []
    counts = extent(row.get("count") for one in losses for cell in one.cells for row in cell.rows)
    said.append(
        f"Small differences between methods: each loss is a mean over {counts} targets, the last quarter of a "
        "trained length in each window. The gain is paired by window; two losses of the table are not. "
        f"{_told_apart(losses)}"
    )
    said.append(
        "How much other text would change. The intervals take windows for independent ones; these are of one "
        "text, and those that end near each other share its topic and may share tokens, which makes the true "
        "intervals wider."
    )
    if any((one.effective_length or (0, 0))[1] == max(lengths_of([one])) for one in losses):
        said.append("How far beyond the longest evaluated length a method reaches, where it is good up to there.")
    said.append("Whether a fact far back is found and put to use. A lower loss can come from topic and style alone.")
    return said


def _told_apart(losses: Sequence[Series]) -> str:
    """How the gains of two methods are compared."""
    if all("window_gains" in row for one in losses for cell in one.cells for row in cell.rows):
        return "Two methods are told apart by the difference of their gains, paired by window."
    return (
        "The rows do not hold the gain of each window, so two methods are told apart only where their gains differ by "
        "more than both standard errors, added, allow."
    )


def missing(results: Run, losses: Sequence[Series], passkeys: Sequence[Series]) -> list[str]:
    """What the settings ask for and the rows do not have, and which parts of the page are therefore absent."""
    said = list(results.notes)
    config = results.config
    measured = [*losses, *passkeys]
    if not measured:
        said.append("No method has been evaluated yet: there is no table and no figure of results.")
    tuning = config.get("finetune") or {}
    if not any(one.phase == "tuned" for one in measured):
        asked = tuning.get("steps", 0)
        said.append("Fine-tuned results are not there yet." if asked else "No fine-tuning: the settings ask for none.")
    if measured and not passkeys:
        said.append(f"No passkey results: the task of this run is {results.rows[-1]['task']}.")
    if measured and not losses:
        said.append(
            "No losses, so no context gain and no effective length: "
            f"the task of this run is {results.rows[-1]['task']}."
        )
    if origin_of(results.rows):
        said.append("What the checkpoint was trained on: the rows do not know it.")
    elif not any(row["metric"] == "training" for row in results.rows):
        said.append("No row about training: tokens trained and the model's size are not known.")
    if losses and not any(row["metric"] == "truncated_loss" for row in results.rows):
        said.append("No row about truncation: the figures lack the line of the last trained length alone.")
    return said + unfinished(config, measured)


def unfinished(config: dict[str, Any], series: Sequence[Series]) -> list[str]:
    """Methods, seeds and lengths that the settings ask for and no row has."""
    said = []
    sweep, tuning = config.get("sweep") or {}, config.get("finetune") or {}
    asked = {
        "base": len(sweep.get("methods", ())),
        "tuned": len(tuning.get("methods", ())) if tuning.get("steps") else 0,
    }
    for phase, number in asked.items():
        found = {one.method if phase == "base" else one.tuned_method for one in series if one.phase == phase}
        if found and len(found) < number:
            name = "methods" if phase == "base" else "methods to fine-tune with"
            said.append(f"Unfinished: {len(found)} of {number} {name} have results so far.")
    seeds, multiples = set(config.get("seeds") or ()), sweep.get("multiples") or ()
    for one in series:
        cells = {(cell.length, row["seed"]) for cell in one.cells for row in cell.rows}
        wanted = {(round(multiple * one.trained_length), seed) for multiple in multiples for seed in seeds}
        gaps = sorted(wanted - cells)
        if gaps:
            lengths = listing([f"{length:,}" for length in dict.fromkeys(length for length, _ in gaps)])
            where = "fine-tuned" if one.phase == "tuned" else "zero-shot"
            said.append(f"Unfinished: {one.name}, {where}, lacks {counted(len(gaps), 'cell')} (length {lengths}).")
    return said
