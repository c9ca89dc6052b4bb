"""The main table for a terminal, at the end of a sweep."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rope_jax.experiment.report.passkeys import chance
from rope_jax.experiment.report.read import Row, settle
from rope_jax.experiment.report.series import factors_in_words, gather
from rope_jax.experiment.report.tables import Entry, main_table, passkey_caption, passkey_table
from rope_jax.experiment.report.verdict import comparison_length, standings
from rope_jax.experiment.report.words import PLUS_MINUS

COLUMNS = 5  # method, loss at 1x, loss far out, context gain, effective length


def terminal_table(rows: Sequence[Row]) -> Table:
    """Method, loss at 1x and 4x (else the longest), context gain, effective length; for passkeys accuracy and chance.

    Args:
        rows: rows of a results.jsonl, finished or failed.

    Returns:
        A rich table; empty, with a caption that says so, when no method has been evaluated.

    Example:
        >>> terminal_table([]).row_count
        0
    """
    shown = settle(rows).rows if rows else ()
    losses, keys = gather(shown, "loss"), gather(shown, "passkey_accuracy")
    if losses:
        length = comparison_length(losses)
        phases = (("zero-shot", "base"), ("fine-tuned", "tuned"))
        groups = [(title, standings(losses, length, phase)) for title, phase in phases]
        found = main_table(groups, length, [])
        words = " ".join((found.caption, factors_in_words(losses), _gain(losses[0].trained_length))).replace("  ", " ")
        return _filled(found.head[:COLUMNS], [row[:COLUMNS] for row in found.rows], words)
    if keys:
        found = passkey_table(keys, chance(shown), [])
        return _filled(found.head[:-1], [row[:-1] for row in found.rows], passkey_caption(keys))
    return Table(caption="no method has been evaluated yet")


def _gain(trained: int) -> str:
    return (
        f"Context gain: loss on the last {trained:,} tokens alone minus loss on the whole window, {PLUS_MINUS} its "
        "standard error; above 0 the longer context is used. Effective length: up to where the gain is nowhere below 0 "
        "by more than two standard errors."
    )


def _filled(head: Sequence[str], body: Sequence[Sequence[Entry]], caption: str = "") -> Table:
    table = Table(caption=caption or None, caption_justify="left")
    for index, name in enumerate(head):
        # Heads in two lines, so that the names of methods are whole in 80 columns.
        place = name.rfind(" at ") if " at " in name else name.find(" ")
        words = f"{name[:place]}\n{name[place + 1 :]}" if index and place > 0 else name
        table.add_column(Text(words), justify="right" if index else "left", no_wrap=index > 0, overflow="fold")
    for row in body:
        if len(row) == 1:
            table.add_section()
            table.add_row(Text(row[0].text, style="bold"))
        else:
            table.add_row(*(Text(entry.text) for entry in row))
    return table
