"""Compiled programs written by hand, in the form that the TPU compiler prints.

loop.hlo: twelve layers forwards, each with a gathered weight, a product as a convolution inside a fusion and a
rotation; then an all-reduce of which every device keeps its part, and a permutation. kernels.hlo: two of splash.
"""

from pathlib import Path

LOOP, KERNELS = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("loop.hlo", "kernels.hlo"))
