"""Trips, products, bytes, cycles and collectives of a compiled program."""

import jax
import jax.numpy as jnp
import pytest

from rope_jax.experiment.tpu.collectives import Collective, collectives
from rope_jax.experiment.tpu.figures import estimated_cycles
from rope_jax.experiment.tpu.flops import product_flops
from rope_jax.experiment.tpu.hlo import Program, parsed
from rope_jax.experiment.tpu.kernels import kernel_flops, kernel_name, kernel_runs
from rope_jax.experiment.tpu.traffic import traffic
from rope_jax.experiment.tpu.trips import loop_trips, runs
from tests.experiment.tpu.texts import KERNELS, LOOP


@pytest.fixture(scope="module")
def program() -> Program:
    return parsed(LOOP)


@pytest.fixture(scope="module")
def compiled() -> Program:
    """A real one: five layers forwards and backwards, [8, 16] @ [16, 16], inside three steps."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])

    def train(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, w: w - jax.grad(loss)(w, x), weights)

    shapes = (jax.ShapeDtypeStruct((5, 16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32))
    return parsed(jax.jit(train).lower(*shapes).compile().as_text() or "")


def test_a_loop_runs_as_often_as_its_condition_says(program: Program) -> None:
    loop = program.computations["main"]["while.1"]
    assert loop_trips(program, loop, "main") == 12
    assert {run.times for run in runs(program) if run.computation == "body"} == {12}


@pytest.mark.parametrize(
    ("condition", "trips"),
    [
        ("compare(%at.c, %constant.end), direction=LE", 13),
        ("compare(%constant.end, %at.c), direction=GT", 12),
        ("compare(%constant.end, %at.c), direction=GE", 13),
    ],
)
def test_every_way_to_write_the_condition(condition: str, trips: int) -> None:
    other = parsed(LOOP.replace("compare(%at.c, %constant.end), direction=LT", condition))
    assert loop_trips(other, other.computations["main"]["while.1"], "main") == trips


def test_a_loop_that_counts_down_by_two() -> None:
    text = LOOP.replace("direction=LT", "direction=GT").replace(
        "%constant.end = s32[]{:T(128)} constant(12)", "%constant.end = s32[]{:T(128)} constant(0)"
    )
    text = text.replace("%constant.zero = s32[]{:T(128)} constant(0)", "%constant.zero = s32[]{:T(128)} constant(9)")
    text = text.replace("%constant.one = s32[]{:T(128)} constant(1)", "%constant.one = s32[]{:T(128)} constant(-2)")
    other = parsed(text)
    assert loop_trips(other, other.computations["main"]["while.1"], "main") == 5


def test_a_loop_that_does_not_tell_is_counted_once_and_said_to_be() -> None:
    other = parsed(
        LOOP.replace("%start = s32[]{:T(128)} copy(%constant.zero)", "%start = s32[]{:T(128)} custom-call(%p0)")
    )
    assert loop_trips(other, other.computations["main"]["while.1"], "main") is None
    assert {(run.times, run.certain) for run in runs(other) if run.computation == "body"} == {(1, False)}
    assert not next(one for one in collectives(other, runs(other)) if one.kind == "all-gather").certain


def test_collectives_by_kind_with_trips_and_sizes(program: Program) -> None:
    assert collectives(program, runs(program)) == (
        Collective("all-gather", 12, 12 * 2 * 2048 * 512, True),
        Collective("reduce-scatter", 1, 2 * 64 * 2048, True),
        Collective("collective-permute", 1, 16, True),
    )


def test_products_count_in_fusions_and_trips(program: Program) -> None:
    assert product_flops(program, runs(program)) == 12 * 2 * 64 * 2048 * 512


def test_batch_axes_that_the_compiler_writes_as_a_window_are_not_multiplied() -> None:
    # Three products [8, 16] @ [16, 4]: the batch is a spatial axis whose window meets one element at a time.
    window = "window={size=3 stride=2 pad=0_0 lhs_dilate=3}, dim_labels=0bf_0io->0bf"
    text = f"""HloModule m

ENTRY %main (a: f32[3,8,16], b: f32[3,16,4]) -> f32[3,8,4] {{
  %a = f32[3,8,16]{{2,1,0}} parameter(0)
  %b = f32[3,16,4]{{2,1,0}} parameter(1)
  ROOT %c = f32[3,8,4]{{2,1,0}} convolution(%a, %b), {window}
}}
"""
    product = parsed(text)
    assert product_flops(product, runs(product)) == 3 * 2 * 8 * 16 * 4


def test_bytes_leave_out_the_chip_and_take_slices_for_what_they_are(program: Program) -> None:
    weight, x, y, wide = 2 * 1024 * 512, 2 * 64 * 2048, 2 * 64 * 512, 2 * 64 * 2048
    counter = 4 + (4 + 4)  # copied to the chip; one is read and the sum written back
    body = 2 * weight + weight + (x + y) + 2 * y + (4 * y + wide) + counter
    outside = 4 + 4 + (2 * 64 * 2048 + 2 * 32 * 2048) + 32
    condition = 4 + 4 + 1
    assert traffic(program, runs(program), on_chip=False).whole == 12 * (body + condition) + outside


def test_bytes_on_the_chip_are_counted_when_asked_for(program: Program) -> None:
    far, every = (traffic(program, runs(program), on_chip=there).whole for there in (False, True))
    gathered, counters = 2 * 2048 * 512, 4 + 4 + 4  # counter: written there, and read twice
    assert every - far == 12 * (2 * gathered + counters) + 8


def test_the_rotation_is_told_by_where_it_was_written(program: Program) -> None:
    found = traffic(program, runs(program), on_chip=True)
    assert (found.rotation, found.among) == (12 * 2 * 2 * 64 * 512, 0)
    # A line of the product's fusion that was written in the rotation makes it one among others.
    line = '  %more = bf16[64,512]{1,0} negate(%convolution.1), metadata={op_name="neg" stack_frame_id=3}\n'
    both = parsed(LOOP.replace("}\n\n%fused_rotation", line + "}\n\n%fused_rotation"))
    assert traffic(both, runs(both), on_chip=False).among == 12 * (2 * 64 * 2048 + 2 * 64 * 512)


def test_cycles_are_summed_over_trips(program: Program) -> None:
    assert estimated_cycles(runs(program)) == 12 * 6200


def test_kernels_are_named_and_their_products_counted() -> None:
    program = parsed(KERNELS)
    found = kernel_runs(runs(program))
    assert [kernel_name(run) for run in found] == ["splash_mha_fwd_segmented", "splash_mha_dq_segmented"]
    pairs = 4 * 512 * 1024 / 2
    assert kernel_flops(program, found) == (2 + 3) * 2 * pairs * 128


def test_a_real_program_loops_and_multiplies_as_often_as_it_was_written_to(compiled: Program) -> None:
    everything = runs(compiled)
    assert all(run.certain for run in everything)
    # Per layer one product forwards and two backwards, of which the first layer's towards x is not needed but made.
    assert product_flops(compiled, everything) == 3 * 5 * 3 * 2 * 8 * 16 * 16
    assert collectives(compiled, everything) == ()


def test_a_real_program_moves_at_least_its_arguments(compiled: Program) -> None:
    assert traffic(compiled, runs(compiled), on_chip=True).whole > 3 * 5 * 4 * 16 * 16
