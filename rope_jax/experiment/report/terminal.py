"""The main table for a terminal, at the end of a sweep."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rope_jax.experiment.report.passkeys import chance
from rope_jax.experiment.report.read import Row, settle
from rope_jax.experiment.report.series import gather
from rope_jax.experiment.report.tables import Entry, main_table, passkey_caption, passkey_table
from rope_jax.experiment.report.verdict import comparison_length, standings

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
        return _filled(found.head[:COLUMNS], [row[:COLUMNS] for row in found.rows])
    if keys:
        found = passkey_table(keys, chance(shown), [])
        return _filled(found.head[:-1], [row[:-1] for row in found.rows], passkey_caption(keys))
    return Table(caption="no method has been evaluated yet")


def _filled(head: Sequence[str], body: Sequence[Sequence[Entry]], caption: str = "") -> Table:
    table = Table(caption=caption or None)
    for index, name in enumerate(head):
        table.add_column(Text(name), justify="right" if index else "left", no_wrap=index > 0)
    for row in body:
        if len(row) == 1:
            table.add_section()
            table.add_row(Text(row[0].text, style="bold"))
        else:
            table.add_row(*(Text(entry.text) for entry in row))
    return table
