"""What a signal does to a run: the step in progress ends and is saved, or the program ends at once."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import jax

from rope_jax.experiment.training.session import Session

HEEDED = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
AGAIN = 0.5
"""Seconds after which a signal counts as a second one: a terminal and what starts programs may both pass it on."""


@contextmanager
def noted(session: Session) -> Iterator[None]:
    """SIGTERM and SIGINT let the step in progress end; the second one of a kind acts as it did before."""
    handlers: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        session.signal = number
        signal.signal(number, handlers[number])

    with _handlers(note) as found:
        handlers |= found
        yield


@contextmanager
def leaving(session: Session) -> Iterator[None]:
    """Ends the program at once on a signal that nothing is to be saved on, or on the second one.

    A compiler may hold the main thread for minutes, and Python runs handlers there alone; so another thread reads what
    has come. One process of several would leave the others waiting, and does not leave.
    """
    if jax.process_count() > 1:
        yield
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    thread = threading.Thread(target=_watch, args=(session, reading), daemon=True)
    with _handlers(lambda number, frame: None), reading, writing:
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            writing.shutdown(socket.SHUT_WR)
            thread.join()


@contextmanager
def _handlers(handler: Any) -> Iterator[dict[int, Any]]:
    """Puts a handler in place of those that are there, which it gives and puts back."""
    found = {number: signal.signal(number, handler) for number in HEEDED}
    try:
        yield {int(number): before for number, before in found.items()}
    finally:
        for number, before in found.items():
            signal.signal(number, before)


def _watch(session: Session, reading: socket.socket) -> None:
    first: dict[int, float] = {}
    while received := reading.recv(1):
        number = received[0]
        if number not in HEEDED:
            continue
        waited = time.monotonic() - first.setdefault(number, time.monotonic())
        if not session.stepping:
            name = signal.Signals(number).name
            _leave(f"stopped by {name}; the same command goes on from step {session.saved}", leaves_with(number))
        if waited > AGAIN:
            _leave("stopped; the same command goes on from the last checkpoint", 128 + number)


def _leave(line: str, code: int) -> None:
    """Without waiting for threads that save or compile: what they were at counts for nothing."""
    print(line, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def leaves_with(number: int) -> int:
    """The exit code of a run that was stopped by a signal and has lost nothing."""
    return INTERRUPTED if number == signal.SIGINT else 0
