"""A coordinator that is not there is given up on in time and in words."""

import socket
import subprocess
import sys
import time

import pytest

from rope_jax.parallel import initialise
from tests.source import ROOT


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_nobody_there():
    start = time.monotonic()
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match=rf"`coordinator` must answer within 2 s; got .* from {address}\. Start"):
        initialise(address, 2, 1, timeout=2)
    assert time.monotonic() - start < 10


def test_no_cluster_that_says_who_the_others_are():
    words = r"`distributed` must reach a coordinator in the environment .* got: .*[^.]\. Give coordinator, "
    with pytest.raises(ConnectionError, match=words):
        initialise(timeout=2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"coordinator": "10.0.0.1:80"}, "`processes` must be given with the other settings"),
        ({"coordinator": "nowhere", "processes": 2, "process": 0}, '`coordinator` must be "host:port"; got'),
        ({"coordinator": "a:99999", "processes": 2, "process": 0}, '`coordinator` must be "host:port"; got'),
        ({"coordinator": "a:1", "processes": 2, "process": 2}, "`process` must be from 0 to 1; got 2"),
        ({"timeout": 0}, "`timeout` must be at least 1 s; got 0"),
    ],
)
def test_settings_that_do_not_go_together(given, words):
    with pytest.raises(ValueError, match=words):
        initialise(**given)


ALONE = """
import sys
from rope_jax.parallel import initialise
try:
    initialise(*sys.argv[1:2], 2, 0, timeout=3)
except ConnectionError as error:
    sys.exit(f"told: {error}")
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_first_process_does_not_wait_for_ever():
    command = [sys.executable, "-c", ALONE, f"127.0.0.1:{free_port()}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert run.returncode != 0
    assert "DEADLINE_EXCEEDED" in run.stderr or "told: `distributed` must reach" in run.stderr
