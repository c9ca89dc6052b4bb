"""Programs compiled for TPU slices on a machine without one: what a chip holds and does.

one = compiled(load_run("configs/train/quickstart.toml"), named("v5e:2x2"))
Console().print(as_table(one))
"""

from rope_jax.experiment.tpu.command import run_compile as run_compile
from rope_jax.experiment.tpu.topologies import known as known
from rope_jax.experiment.tpu.topologies import named as named
