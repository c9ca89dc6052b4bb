"""What the rope settings of a configuration do to its model; two configurations side by side.

python scripts/inspect_rope.py path/to/config.json
python scripts/inspect_rope.py mine/config.json published/config.json --figure spectra.png
"""

from rope_jax.experiment.inspect import run_inspection

if __name__ == "__main__":
    raise SystemExit(run_inspection())
