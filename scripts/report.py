"""Rebuild the report of a run from its results.jsonl: python scripts/report.py runs/quickstart."""

import argparse
import sys
from pathlib import Path

from rope_jax.experiment.report import ResultsError, write_report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Rebuild figures/*.png and report.html from the results.jsonl of a run."
    )
    parser.add_argument("folder", type=Path, help="the folder that holds results.jsonl, for example runs/quickstart")
    folder = parser.parse_args(arguments).folder
    try:
        path = write_report(folder)
    except (ResultsError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
