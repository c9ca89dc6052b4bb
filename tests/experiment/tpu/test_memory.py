"""Memory of a program, and the compiler's word that there is too little."""

from types import SimpleNamespace

from rope_jax.experiment.tpu.memory import Memory, memory_of, too_large
from rope_jax.experiment.tpu.topologies import GIB, named

OVER = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 23.50G of 15.75G hbm. Exceeded hbm capacity by 7.75G."
)


def test_donated_arguments_count_once() -> None:
    analysis = SimpleNamespace(
        argument_size_in_bytes=100,
        output_size_in_bytes=90,
        alias_size_in_bytes=80,
        temp_size_in_bytes=7,
        generated_code_size_in_bytes=3,
    )
    memory = memory_of(SimpleNamespace(memory_analysis=lambda: analysis))
    assert memory == Memory(100, 90, 80, 7, 3)
    assert memory.total == 120


def test_what_fits_a_chip() -> None:
    chip = named("v5e:2x2").chip
    assert Memory(16 * GIB - 1, 0, 0, 1, 0).fits(chip)
    assert not Memory(16 * GIB, 0, 0, 1, 0).fits(chip)


def test_the_compilers_complaint_is_read() -> None:
    found = too_large(OVER)
    assert found is not None
    assert found.needed == round(23.5 * GIB) and found.available == round(15.75 * GIB)


def test_another_complaint_is_none_about_memory() -> None:
    assert too_large("INVALID_ARGUMENT: mosaic failed to compile") is None
    unread = too_large("RESOURCE_EXHAUSTED: hbm is full")
    assert unread is not None and unread.needed is None
