"""`scripts/train.py`: a TOML file and overrides in, the folder of the run out, a user's mistake in one line."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from rope_jax.experiment.command import USER_FAULT, complain
from rope_jax.experiment.training.config import read_run
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.settings import RunConfig
from rope_jax.experiment.training.start import Run

DIVERGED = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the words of the command line say.

    Returns:
      The exit code: 0 for a run that has ended or was told to stop by SIGTERM, 1 for one that diverged, 2 for a user's
      fault, 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        _parser().print_help()
        return 0 if words else USER_FAULT
    distributed = "--distributed" in words
    _make_room_for_simulated_devices()
    try:
        config = _read([word for word in words if word != "--distributed"])
        if distributed or config.distributed.coordinator:
            _join(config)
        return _train(open_run(config))
    except FloatingPointError as error:
        return complain(error, DIVERGED)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        return complain(error, USER_FAULT)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a model in stages, resuming from the last checkpoint.",
        usage="%(prog)s CONFIG.toml [--distributed] [--table.key VALUE ...]",
        epilog="Any setting can be changed: --stages.0.steps 100 --optimizer.learning-rate 1e-3 --output FOLDER. "
        "CONFIG.toml --help lists all with their values. Everything is written to OUTPUT/NAME: metrics.jsonl, "
        "checkpoints, TensorBoard events, and record.json, which says what every stage saw. The same command goes on "
        "where it was stopped, on as many devices as there are then; stages that it has not reached may be changed, "
        'and to train longer one with schedule = "rewarmed" is added. Exit codes: 0 all done, or stopped by SIGTERM; 1 '
        "it diverged; 2 the command cannot be carried out; 130 stopped by Ctrl-C.",
        add_help=False,
    )
    parser.add_argument("config", metavar="CONFIG.toml", help="settings of the run, with its [[stages]]")
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="train with the other processes that Cloud TPU, Slurm, MPI or Kubernetes started; elsewhere set "
        "--distributed.coordinator HOST:PORT --distributed.processes N --distributed.process I",
    )
    return parser


def _make_room_for_simulated_devices() -> None:
    """Threads enough for all CPU devices: XLA makes one for each, and collectives under way at once can block them all.

    Before the first use of a device, when XLA reads the variable.
    """
    if int(os.environ.get("JAX_NUM_CPU_DEVICES") or 1) > 1:
        os.environ.setdefault("PJRT_NPROC", "64")


def _read(words: list[str]) -> RunConfig:
    if words and not words[0].startswith("-"):
        return read_run(words[0], words[1:])
    raise ValueError(f"`config` must come first; got {words[0] if words else 'nothing'!r}. Name a TOML file.")


def _join(config: RunConfig) -> None:
    """Meet the other processes, before anything else uses a device."""
    from rope_jax.parallel import initialise

    asked = config.distributed
    initialise(
        asked.coordinator or None,
        asked.processes or None,
        asked.process if asked.process >= 0 else None,
        asked.timeout,
    )


def _train(run: Run) -> int:
    import jax

    from rope_jax.experiment.training.export import FOLDER, export_run
    from rope_jax.experiment.training.run import train
    from rope_jax.experiment.training.session import Session
    from rope_jax.experiment.training.signals import leaves_with, leaving

    config = run.config
    with Session(run) as session, leaving(session):
        outcome = train(session)
        if outcome.stopped is not None:
            name = signal.Signals(outcome.stopped).name
            session.metrics.say(
                f"stopped by {name} after step {outcome.step} of {config.steps}; the same command goes on from there"
            )
            return leaves_with(outcome.stopped)
        if config.export:
            exported = export_run(run, outcome.state["params"], session.vocab, session.folder / FOLDER)
            session.metrics.say(f"exported to {exported}")
        if jax.process_index() == 0:
            print(session.folder)
    return 0
