"""What a run says: plain lines away from a terminal, and a time left that weighs the work."""

import io
import time

import pytest
from rich.console import Console

from rope_jax.experiment.progress import UNKNOWN, Pace, Reporter


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told to."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def reporter_and_text():
    text = io.StringIO()
    return Reporter(Console(file=text, width=100)), text


def test_plain_lines_name_the_cell_and_the_time_left(clock):
    reporter, text = reporter_and_text()
    with reporter:
        reporter.begin(cells=5, finished=2, work=400.0)
        assert reporter.left() == UNKNOWN
        clock[0] = 30.0
        reporter.advance(100.0)
        reporter.cell_ended("loss [YaRN] at 256: 1.4")
        clock[0] = 1000.0
        reporter.advance(100.0)
        assert reporter.left() == "about 17 min left"
    assert text.getvalue().splitlines() == [
        "5 cells, 2 finished earlier",
        "[3/5] loss [YaRN] at 256: 1.4; about 90 s left",
    ]


def test_training_counts_three_times_its_tokens_and_what_was_done_earlier_not_at_all(clock):
    reporter, text = reporter_and_text()
    with reporter:
        reporter.begin(cells=1, finished=0, work=3 * 10 * 100.0)
        pace = Pace(reporter, "training", tokens_per_step=100, steps=10)
        pace(4, None)
        clock[0] = 2.0
        pace(6, 1.5)
        # Two of six steps took two seconds.
        assert reporter.left() == "about 4 s left"
    assert text.getvalue().splitlines()[1:] == [
        f"training: goes on from step 4; {UNKNOWN}",
        "training: step 6/10, loss 1.5000, 100 tokens/s; about 4 s left",
    ]
