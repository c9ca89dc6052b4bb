"""The main table for a terminal, at the end of a sweep."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from rope_jax.experiment.report.headline import headline
from rope_jax.experiment.report.key_headline import key_headline
from rope_jax.experiment.report.passkeys import chance, comparison
from rope_jax.experiment.report.read import Row, settle
from rope_jax.experiment.report.series import factors_in_words, gather
from rope_jax.experiment.report.tables import Entry, main_table, passkey_caption, passkey_table, short_accuracy
from rope_jax.experiment.report.verdict import comparison_length, standings
from rope_jax.experiment.report.words import LEVEL, PLUS_MINUS

COLUMNS = 5  # method, loss at 1x, loss far out, context gain, effective length


def terminal_table(rows: Sequence[Row]) -> Table:
    """Method, loss at 1x and 4x (else the longest), context gain, effective length; for passkeys accuracy and chance.

    Below it the answer to the question of the sweep, as on the page.

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
        found, trained = main_table(groups, length, []), losses[0].trained_length
        answer = ": ".join(headline(groups[0][1], groups[1][1], length, trained))
        words = " ".join((found.caption, factors_in_words(losses), _gain(trained))).replace("  ", " ")
        return _filled(found.head[:COLUMNS], [_narrow(row) for row in found.rows], f"{answer}\n{words}")
    if keys:
        found = passkey_table(keys, chance(shown), [], short_accuracy)
        answer = ": ".join(key_headline(*comparison(keys), chance(shown)))
        return _filled(found.head[:-1], [row[:-1] for row in found.rows], f"{answer}\n{passkey_caption(keys)}")
    return Table(caption="no method has been evaluated yet")


def _gain(trained: int) -> str:
    return (
        f"Context gain: loss on the last {trained:,} tokens alone minus loss on the whole window, {PLUS_MINUS} its "
        f"standard error; above 0 the longer context is used. Effective length: up to where the {LEVEL} interval of "
        "the gain is nowhere below 0."
    )


def _narrow(row: Sequence[Entry]) -> list[Entry]:
    """The columns of a terminal, the two ends of an effective length on two lines."""
    return [
        *row[: COLUMNS - 1],
        *(Entry(entry.text.replace(" and ", "\nand ")) for entry in row[COLUMNS - 1 : COLUMNS]),
    ]


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
