"""The command line: compile a program of a run for a slice, or list the slices."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

import jax
from rich.console import Console

from rope_jax.experiment.tpu.shown import as_json, as_table, topology_table
from rope_jax.experiment.tpu.topologies import known, named

USER_FAULT = 2
TOO_LARGE = 1
WHAT = ("step", "evaluate", "decode")


def run_compile(arguments: Sequence[str] | None = None) -> int:
    """Compile, and print what one chip holds and does.

    Args:
      arguments: command-line words; those of the process by default.

    Returns:
      The exit code: 0, 1 when a chip cannot hold the program, 2 for a user's fault or where the compiler finds one,
      printed as one line.
    """
    given, overrides = _parser().parse_known_args(arguments)
    # A file or pipe has no width of its own.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=120)
    if given.topologies:
        console.print(topology_table(known()))
        return 0
    try:
        if given.config is None or given.topology is None:
            missing = "config" if given.config is None else "--topology"
            raise ValueError(f"`{missing}` must be given; got nothing. An example: run.toml --topology v5e:2x2.")
        topology = named(given.topology)
        # Here, since they bring in everything that trains.
        from rope_jax.experiment.tpu.compiling import compiled
        from rope_jax.experiment.training.config import load_run

        found = compiled(load_run(given.config, overrides), topology, what=given.what, stage=given.stage)
    except (ValueError, TypeError, OSError, ImportError, jax.errors.JaxRuntimeError) as error:
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return USER_FAULT
    if given.json:
        console.out(json.dumps(as_json(found), allow_nan=False), highlight=False)
    else:
        console.print(as_table(found))
    return 0 if found.fits else TOO_LARGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Compile the train step of a run, its evaluation or its decoding with the TPU's own compiler, on a "
        "machine without a TPU: memory, work and collectives of one chip. Exits with 1 when it does not fit.",
        epilog="Any setting of the run can be changed: --mesh.context 4 --tokens-per-batch 65536.",
        usage="%(prog)s CONFIG.toml --topology v5e:2x2 [--what step|evaluate|decode] [--table.key VALUE ...]\n"
        "       %(prog)s --topologies",
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG.toml", help="settings of the run, as for train.py")
    parser.add_argument("--topology", metavar="NAME", help="the slice: generation and grid, such as v5p:2x2x2")
    parser.add_argument("--topologies", action="store_true", help="list the slices that are known, and stop")
    parser.add_argument("--what", choices=WHAT, default="step", help="which program (default: step)")
    parser.add_argument("--stage", metavar="NAME", help="of the run (default: the longest that trains)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    return parser
