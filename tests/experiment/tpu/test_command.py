"""The command line of the TPU compiler: what it lists and refuses, and, where libtpu is installed, real programs."""

import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rope_jax.experiment.tpu import run_compile
from rope_jax.experiment.tpu.collectives import Collective
from rope_jax.experiment.tpu.compiling import Compiled
from rope_jax.experiment.tpu.figures import Figures
from rope_jax.experiment.tpu.memory import Memory
from rope_jax.experiment.tpu.shown import as_json, as_table
from rope_jax.experiment.tpu.topologies import GIB, named
from rope_jax.experiment.tpu.traffic import Traffic

ROOT = Path(__file__).parents[3]
FIGURES = Figures(
    memory=Memory(6 * GIB, 5 * GIB, 5 * GIB, 3 * GIB, 2**20),
    flops=4e12,
    kernel_flops=1e12,
    bytes=Traffic(100 * GIB, 2 * GIB, 30 * GIB),
    hbm_bytes=Traffic(50 * GIB, GIB // 2, 20 * GIB),
    cycles=3 * 10**9,
    collectives=(Collective("all-gather", 64, 3 * GIB, True),),
    kernels={"splash_mha_fwd_segmented": 32},
    optimal_seconds=-63.5,
    once_flops=1e11,
    once_bytes=1e10,
    certain=True,
)


def result(figures: Figures | None = FIGURES, needed: int | None = None) -> Compiled:
    mesh = {"fsdp": 4, "context": 4}
    return Compiled("run", "step", "base", named("v5e:4x4"), mesh, 8, 8192, figures, needed, 16 * GIB, 1.0, 60.0)


def printed(compiled: Compiled) -> str:
    console = Console(width=140, file=io.StringIO())
    console.print(as_table(compiled))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_slices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_compile(["--topologies"]) == 0
    shown = capsys.readouterr().out
    assert "v5e:2x2" in shown and "v5p:2x2x1" in shown and "95.00 GiB" in shown and "2765 GB/s" in shown


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["run.toml"], "`--topology` must be given"),
        (["--topology", "v5e:2x2"], "`config` must be given"),
        (["run.toml", "--topology", "v5e:3x3"], "`topology` must be one that is known; got 'v5e:3x3'. Near ones: v5e:"),
        (["absent.toml", "--topology", "v5e:2x2"], "`config` must be a file"),
    ],
)
def test_a_users_fault_is_one_line(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_compile(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and fault in shown.err and shown.err.count("\n") == 1 and not shown.out


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_one_line_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_compile([str(ROOT / "configs/train/quickstart.toml"), "--topology", "v5e:2x2"]) == 2
    assert 'pip install "rope-jax[tpu]"' in capsys.readouterr().err


def test_what_is_shown_adds_up() -> None:
    shown = printed(result())
    for part in ("compiled for v5e:4x4, 16 chips: fsdp 4 x context 4", "9.00 GiB", "56 % of 16.00 GiB", "all-gather"):
        assert part in shown
    assert "2 %" in shown and "of all bytes; 1 % of HBM's" in shown and "ran on" not in shown


def test_json_has_every_figure() -> None:
    plain = json.loads(json.dumps(as_json(result())))
    assert plain["memory"]["total"] == 9 * GIB + 2**20 and plain["fits"] and plain["chips"] == 16
    assert plain["rotation_share"] == {"bytes": 0.02, "hbm_bytes": 0.01}
    assert plain["least_seconds"] == pytest.approx(50 * GIB / 0.819e12)
    assert plain["estimated_seconds"] == pytest.approx(2.0 + 1e12 / 197e12)
    assert plain["collectives"]["all-gather"] == {"count": 64, "bytes": 3 * GIB, "certain": True}


def test_cycles_are_no_seconds_where_the_clock_is_not_published() -> None:
    other = dataclasses.replace(result(), topology=named("v6e:4x4"))
    assert as_json(other)["estimated_seconds"] is None
    assert "not known" in printed(other)


def test_a_program_that_the_compiler_gives_up_on_does_not_fit() -> None:
    refused = result(None, needed=round(23.5 * GIB))
    assert not refused.fits and as_json(refused)["memory"] is None
    assert "does not fit: 23.50 GiB on a chip with 16.00 GiB" in printed(refused)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
class TestCompiler:
    """Programs of the quickstart, compiled for four small chips."""

    def run(self, *words: str, code: int = 0) -> dict:
        script, config = ROOT / "scripts/compile_tpu.py", ROOT / "configs/train/quickstart.toml"
        command = [sys.executable, str(script), str(config), "--topology", "v5e:2x2", "--json", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3000, check=False)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def test_the_step_fits_and_its_gradients_are_summed(self) -> None:
        found = self.run()
        assert found["fits"] and found["certain"] and found["mesh"] == {"data": 4}
        # State of 0.84 million weights, three float32 numbers each, donated.
        assert 9e6 < found["memory"]["aliased"] < found["memory"]["arguments"] < 20e6
        # Six operations a weight and token, without the attention itself.
        assert found["flops"] > 6 * 0.8e6 * 4096 / 4
        assert found["collectives"]["all-reduce"]["bytes"] > 4 * 0.8e6
        assert 0.01 < found["rotation_share"]["bytes"] < 0.5

    def test_decoding_and_evaluation_compile(self) -> None:
        assert self.run("--what", "evaluate")["fits"]
        assert self.run("--what", "decode")["fits"]

    def test_what_does_not_fit_exits_with_one(self) -> None:
        words = ("--tokens-per-batch", str(2**24), "--compute.loss-chunk", str(2**22))
        assert not self.run(*words, code=1)["fits"]
