"""From the rows of a sweep to a page: read, tables, figures, page."""

from rope_jax.experiment.report.page import write_report
from rope_jax.experiment.report.read import ResultsError
from rope_jax.experiment.report.terminal import terminal_table

__all__ = ["ResultsError", "terminal_table", "write_report"]
