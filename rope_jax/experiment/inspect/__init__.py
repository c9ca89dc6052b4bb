"""What a configuration's rope settings do to the model, for a careful reader: tables, a figure, JSON.

one = read_inspection("path/to/model")
Console().print(one_config(one, one.default_lengths))
"""

from rope_jax.experiment.inspect.beside import two_configs as two_configs
from rope_jax.experiment.inspect.command import run_inspection as run_inspection
from rope_jax.experiment.inspect.drawing import draw_spectra as draw_spectra
from rope_jax.experiment.inspect.machine import as_json as as_json
from rope_jax.experiment.inspect.reading import Inspection as Inspection
from rope_jax.experiment.inspect.reading import read_inspection as read_inspection
from rope_jax.experiment.inspect.terminal import one_config as one_config
