"""What is read in the text of a compiled program."""

import pytest

from rope_jax.experiment.tpu.hlo import Shape, parsed
from tests.experiment.tpu.texts import KERNELS, LOOP


def test_an_instruction_has_its_shapes_operands_and_calls() -> None:
    program = parsed(LOOP)
    loop = program.computations[program.entry]["while.1"]
    assert loop.opcode == "while" and loop.operands == ("first",)
    assert loop.calls == {"condition": "condition", "body": "body"}
    assert loop.shapes == (
        Shape("s32", ()),
        Shape("bf16", (64, 2048)),
        Shape("bf16", (12, 1024, 512)),
    )
    assert loop.bytes == 4 + 2 * 64 * 2048 + 2 * 12 * 1024 * 512


def test_arrays_on_the_chip_are_told_from_those_in_its_memory() -> None:
    body = parsed(LOOP).computations["body"]
    assert body["all-gather.4"].shapes[0].space == 1
    assert body["weight"].shapes[0].space == 0


def test_comments_and_roots_are_read() -> None:
    program = parsed(LOOP)
    assert len(program.computations["body"]["state"].shapes) == 3
    assert program.root("body").name == "state.next"


def test_the_stack_of_a_line_goes_from_inner_to_outer() -> None:
    program = parsed(LOOP)
    assert program.written_in(program.root("fused_rotation")) == (
        "/lib/rope_jax/rotation.py:rotate",
        "/home/me/train.py:step",
        "/home/me/train.py:<module>",
    )
    assert program.written_in(program.computations["body"]["wide"]) == ()


def test_an_instruction_that_goes_over_several_lines_ends_no_computation() -> None:
    program = parsed(KERNELS)
    assert list(program.computations["main"]) == ["q", "k", "blocks", "splash.1", "splash.2"]
    assert program.computations["main"]["splash.1"].op_name.endswith("splash_mha_fwd_segmented/pallas_call")
    assert program.root("main").name == "splash.2"


@pytest.mark.parametrize(("dtype", "bits"), [("pred", 8), ("bf16", 16), ("f8e4m3fn", 8), ("s4", 4), ("f32", 32)])
def test_the_width_of_a_type(dtype: str, bits: int) -> None:
    assert Shape(dtype, (3, 8)).bytes == 3 * bits


def test_a_text_without_an_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a compiled module with an entry"):
        parsed("HloModule nothing")
