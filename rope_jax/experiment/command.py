"""The shell that the scripts share: a TOML file or a checkpoint, dotted overrides, one line for a user's mistake."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rope_jax.experiment.arguments import read_arguments
from rope_jax.experiment.config import ExperimentConfig
from rope_jax.experiment.model import Subject

Prepared = TypeVar("Prepared")

USER_FAULT = 2


def run_script(
    description: str,
    prepare: Callable[[ExperimentConfig, Subject | None], Prepared],
    execute: Callable[[Prepared], Path],
    arguments: Sequence[str] | None = None,
) -> int:
    """Read the config, prepare, execute, and print the path of what was written.

    Args:
      description: what the script does, for `--help`.
      prepare: given the config, and its model where that is read already, checks everything and builds what `execute`
        runs; its ValueError, TypeError, OSError, RuntimeError
        or ImportError is the user's fault and is printed as one line.
      execute: computes and writes; what it raises is a fault of the program, but for a diverged training.
      arguments: command-line words; those of the process by default.

    Returns:
      The exit code: 0, 1 for a diverged training, 2 for a user's fault, 130 after Ctrl-C.

    Example:
      raise SystemExit(run_script("Train.", prepare, execute))
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        description=description,
        epilog="Any setting can be changed: --sweep.multiples 1 2 --evaluate.windows 8 --output FOLDER. CONFIG.toml "
        "--help, or --checkpoint DIR --help, lists all with their values. Results are written to OUTPUT/NAME "
        "(runs/NAME; NAME is that of the config or the checkpoint). The same command goes on where it was stopped.",
        usage="%(prog)s CONFIG.toml [--table.key VALUE ...]\n"
        "       %(prog)s --checkpoint DIR [--text FILE] [--table.key VALUE ...]",
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "config", metavar="CONFIG.toml", help="settings of the experiment; not needed with a checkpoint"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="start from trained weights: a folder in Hugging Face form, a .gguf file or a hub id; with no config, "
        "plain RoPE, position interpolation, NTK and YaRN at 1, 2 and 4 times its trained length, no training",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="the text to read, or a glob in quotes; the same as --data.source (default with a checkpoint: the Python "
        "files of the standard library)",
    )
    if not words or words[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if words else USER_FAULT
    try:
        try:
            request = read_arguments(words)
            prepared = prepare(request.config, request.subject)
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            return _complain(error, USER_FAULT)
        for line in request.notes:
            print(f"note: {line}", file=sys.stderr)
        print(execute(prepared))
    except FloatingPointError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _complain(error: Exception, code: int) -> int:
    """Print an error as one line."""
    print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    return code
