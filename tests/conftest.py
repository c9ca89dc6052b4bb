"""What every test runs under: the CPU, a compile cache that lasts, strict promotion, shapes checked at run time."""

import gc
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest


def _cpu() -> str:
    """Digest of the CPU's model and features: XLA's CPU programs run only where they were compiled for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    kept = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    described = "\n".join(sorted(kept)) or f"{platform.processor()} {platform.node()}"
    return f"{platform.machine()}-{hashlib.sha256(described.encode()).hexdigest()[:12]}"


def _compile_cache() -> Path:
    """Where compiled programs are kept from one run to the next."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "rope-jax" / "compiled" / f"jaxlib-{version('jaxlib')}-{_cpu()}"


# In the environment, not in jax.config, so that the scripts that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_compile_cache()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402  (reads the variables above when it is imported)
import jaxtyping  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A collection frees next to nothing of all that jax keeps of its programs, and by the usual thresholds often walks it.
gc.set_threshold(5000, 10, 20)

if "rope_jax" in sys.modules:
    raise RuntimeError("rope_jax must be imported after the hook that checks its shapes. Import it in tests only.")
# An int is a float, as type checkers have it.
jaxtyping.install_import_hook("rope_jax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """A file's tests stay in one process, so that they share what they compiled; files start as they are collected."""
    from xdist.scheduler import LoadFileScheduling

    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest in one piece starts first: at the end the other processes would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_eight_devices.py")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the repository; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("reference data: no folder named shared beside the repository")
    return folder


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches the run-time checks off: for tests of the errors that the code itself raises, as its users see them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
