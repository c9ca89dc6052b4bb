"""Where a number came from: package versions, device, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

PACKAGES = ("rope-jax", "jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")


def versions() -> dict[str, str]:
    """Versions of Python and of every installed package that a number may depend on, and JAX's random generator."""
    found = {"python": platform.python_version(), "prng": str(jax.random.key_impl(jax.random.key(0)))}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device_name() -> str:
    """The devices in words: "1 x NVIDIA H100", or the CPU's model and how many of its cores this process may use."""
    devices = jax.devices()
    kind = devices[0].device_kind
    if devices[0].platform != "cpu":
        return f"{len(devices)} x {kind}"
    model = platform.processor() or platform.machine() or kind
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"cpu: {model}, {cores} cores"


def commit() -> str | None:
    """The git commit of the source tree, with "-dirty" when tracked files are changed; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
