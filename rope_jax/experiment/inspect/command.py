"""The command line of the inspection."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType

from rope_jax.experiment.inspect.beside import two_configs
from rope_jax.experiment.inspect.drawing import draw_spectra
from rope_jax.experiment.inspect.machine import as_json
from rope_jax.experiment.inspect.reading import Inspection, read_inspection
from rope_jax.experiment.inspect.terminal import one_config

USER_FAULT = 2


def run_inspection(arguments: Sequence[str] | None = None) -> int:
    """Inspect one configuration, or two side by side.

    Args:
      arguments: command-line words; those of the process by default.

    Returns:
      The exit code: 0, or 2 for a user's fault, which is printed as one line.
    """
    given = _parser().parse_args(arguments)
    try:
        if len(given.config) > 2:
            raise ValueError(f"`config` must be one configuration or two; got {len(given.config)}.")
        if given.figure is not None and given.figure.suffix.lower() != ".png":
            raise ValueError(f"`figure` must be the name of a .png file; got {str(given.figure)!r}.")
        found = [
            read_inspection(source, strict=given.strict, trained_length=given.trained_length) for source in given.config
        ]
        shown = _shown(found, given)
        if given.figure is not None:
            given.figure.parent.mkdir(parents=True, exist_ok=True)
            given.figure.write_bytes(draw_spectra(found, given.length))
    except (ValueError, TypeError, OSError, ImportError) as error:
        said = " ".join(str(error).split()).replace("strict=False", "--no-strict")
        print(f"error: {said or type(error).__name__}", file=sys.stderr)
        return USER_FAULT
    # A file or pipe has no width of its own.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=120)
    if isinstance(shown, str):
        console.out(shown, highlight=False)
        return 0
    console.print(shown)
    if given.figure is not None:
        console.out(str(given.figure), highlight=False)
    return 0


def _shown(found: Sequence[Inspection], given: argparse.Namespace) -> RenderableType:
    """The tables, or the JSON as a string."""
    if given.json:
        return json.dumps(as_json(found, given.length), indent=1, allow_nan=False)
    if len(found) == 2:
        return two_configs(found[0], found[1], given.length, whole=given.all)
    return one_config(found[0], given.length, whole=given.all)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="What the rope settings of a configuration do to the model: every pair of channels, every number "
        "with its origin, and what looks odd. Two configurations are laid side by side.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "config", nargs="+", help="a config.json, a folder that holds one, a hub id or a .gguf file; one or two of them"
    )
    parser.add_argument(
        "--length", type=int, nargs="+", metavar="N", help="tokens at which to look (default: what the file claims)"
    )
    parser.add_argument("--trained-length", type=int, metavar="N", help="tokens trained on, where the file is wrong")
    parser.add_argument(
        "--strict", action=argparse.BooleanOptionalAction, default=True, help="refuse what would have to be guessed"
    )
    parser.add_argument("--all", action="store_true", help="show every pair")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--figure", type=Path, metavar="OUT.png", help="write wavelengths and stretches as a figure")
    return parser
