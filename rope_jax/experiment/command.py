"""The shell that the scripts share: a TOML file or a checkpoint, dotted overrides, one line for a user's mistake."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rope_jax.experiment.arguments import read_arguments, taken
from rope_jax.experiment.executors import options
from rope_jax.experiment.executors.job import ExecutorError

Prepared = TypeVar("Prepared")

USER_FAULT = 2
UNFINISHED = 1


class UnfinishedError(Exception):
    """Some of what was asked for failed, and the rest is written.

    Args:
      path: of what was written.
      line: what is missing.
    """

    def __init__(self, path: Path, line: str) -> None:
        super().__init__(line)
        self.path = path


def run_script(
    description: str,
    prepare: Callable[..., Prepared],
    execute: Callable[[Prepared], Path],
    arguments: Sequence[str] | None = None,
    *,
    executors: bool = False,
) -> int:
    """Read the config, prepare, execute, and print the path of what was written.

    Args:
      description: what the script does, for `--help`.
      prepare: given the config, and its model where that is read already, checks everything and builds what `execute`
        runs; its ValueError, TypeError, OSError, RuntimeError
        or ImportError is the user's fault and is printed as one line.
      execute: computes and writes; what it raises is a fault of the program, but for a diverged training, something
        left unfinished, or a cluster that is no longer there.
      arguments: command-line words; those of the process by default.
      executors: whether the command line chooses where cells are measured; `prepare` is then given that as well, by the
        name of `executor`.

    Returns:
      The exit code: 0, 1 for a diverged training or something left unfinished, 2 for a user's fault, 130 after Ctrl-C.

    Example:
      raise SystemExit(run_script("Train.", prepare, execute))
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _help(description, executors)
    if not words or words[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if words else USER_FAULT
    try:
        try:
            words, given = taken(words, options.NAMES if executors else ())
            chosen = {"executor": options.executor_of(given)} if executors else {}
            request = read_arguments(words)
            prepared = prepare(request.config, request.subject, **chosen)
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            return complain(error, USER_FAULT)
        for line in request.notes:
            print(f"note: {line}", file=sys.stderr)
        print(execute(prepared))
    except UnfinishedError as error:
        print(error.path)
        return complain(error, UNFINISHED)
    except FloatingPointError as error:
        return complain(error, UNFINISHED)
    except ExecutorError as error:
        return complain(error, USER_FAULT)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _help(description: str, executors: bool) -> argparse.ArgumentParser:
    """What `--help` prints."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="Any setting can be changed: --sweep.multiples 1 2 --evaluate.windows 8 --output FOLDER. CONFIG.toml "
        "--help, or --checkpoint DIR --help, lists all with their values. Results are written to OUTPUT/NAME "
        "(runs/NAME; NAME is that of the config or the checkpoint). The same command goes on where it was stopped. "
        "Exit codes: 0 all done; 1 a cell failed or a training diverged, with the reason, and what could be done is "
        "written; 2 the command cannot be carried out; 130 stopped by Ctrl-C.",
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
    if executors:
        options.add_help(parser)
    return parser


def complain(error: Exception, code: int) -> int:
    """Print an error as one line."""
    print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    return code
