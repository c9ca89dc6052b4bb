"""Tests that need eight devices: collected only where there are as many, as in test_eight_devices."""

import os

import jax

if os.environ.get("JAX_NUM_CPU_DEVICES") == "8":
    # XLA makes as many threads as there are devices, and two collectives at once in a program can block them all.
    os.environ.setdefault("PJRT_NPROC", "64")

collect_ignore_glob = [] if jax.device_count() == 8 else ["test_*.py"]
