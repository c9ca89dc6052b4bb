from pathlib import Path

import pytest

from rope_jax.experiment.results import read_results
from tests.experiment.tiny import run, text_config


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A whole run of the text experiment: (config, folder, rows)."""
    config = text_config(tmp_path_factory.mktemp("sweep"))
    outcome = run(config)
    folder = Path(config.output) / config.name
    rows = read_results(folder)
    assert (outcome.finished, outcome.failed, outcome.waiting) == (10, (), 0)
    return config, folder, rows
