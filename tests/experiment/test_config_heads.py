"""The configurations of the repository: each loads, and its head says how it is run and what to expect."""

from pathlib import Path

import pytest

from rope_jax.experiment.config import load_config
from rope_jax.experiment.training.config import load_run

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.toml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_config_loads_and_states_how_it_is_run(path):
    header, name = path.read_text(encoding="utf-8"), path.relative_to(CONFIGS).as_posix()
    trains = path.parent.name == "train"
    _ = (load_run if trains else load_config)(path)
    # What is too large to be run here says what it was compiled for.
    time = "not run on it" if trains and "compiled for" in header else "# minutes: "
    for line in ("# command:  python scripts/", f"configs/{name}", "# hardware: ", time, "# expected: "):
        assert line in header
    assert f"({name})" in (CONFIGS / "README.md").read_text(encoding="utf-8")
