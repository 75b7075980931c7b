"""The user's line in exceptions that jax raises while tracing an invalid call."""

from __future__ import annotations

import functools
import linecache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.bridge.lowering import raised
from pallas_debug.errors import JaxAssertionError
from pallas_debug.findings.failure import failed
from pallas_debug.findings.sighting import Sighting


@pytest.mark.slow
def _calls_what_does_not_fit(x_ref: Any, o_ref: Any) -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y

    o_ref[...] = add(x_ref[...])


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda o_ref: None, "takes 1 positional argument but 2 were given"),
        (lambda x, o, y: None, "missing 1 required positional argument: 'y'"),
        (lambda x, o, *, scale: None, "missing 1 required keyword-only argument: 'scale'"),
        (functools.partial(lambda scale, x: None, 2), "takes 2 positional arguments but 3 were"),
        (_calls_what_does_not_fit, ""),
    ],
)
def test_a_kernel_that_does_not_take_its_references(body: Any, message: str) -> None:
    x = jax.ShapeDtypeStruct((8, 128), "float32")
    with raised.with_all_frames(), pytest.raises(TypeError) as error:
        jax.jit(pl.pallas_call(body, out_shape=x)).trace(x)
    failure = raised.failure(error.value)
    known = failure.explanation
    assert failure.source is not None
    if not message:  # what a kernel calls is its own affair
        assert known is None
        assert failure.source.text == "o_ref[...] = add(x_ref[...])"
        return
    assert message in failure.message
    assert failure.message.endswith(", while jax called the kernel")
    assert failure.source.text == "jax.jit(pl.pallas_call(body, out_shape=x)).trace(x)"
    assert known is not None
    assert known.id == "kernel-parameters"


ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def _slices(x_ref: Any, o_ref: Any) -> None:
    i = pl.program_id(0)
    o_ref[...] = x_ref[i * 8 : i * 8 + 8]


def _compares(x_ref: Any, o_ref: Any) -> None:
    if x_ref[0, 0] > 0:
        o_ref[...] = x_ref[0:8]


def _masks(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[x_ref[0:8] > 0] = 1.0


def _leaks(x_ref: Any, o_ref: Any) -> None:
    total = x_ref[0:8]

    @pl.when(pl.program_id(0) == 0)
    def _double() -> None:
        nonlocal total
        total = total * 2

    o_ref[...] = total


def _makes_a_constant(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[0:8] + jnp.array([1.0] * 128)


def _asks_for_an_argument(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _store(value: Any) -> None:
        o_ref[...] = value


@pytest.mark.parametrize(
    "body, entry, message, text",
    [
        (_slices, "traced-slice", "the bounds of a slice are traced", "i * 8 : i * 8 + 8"),
        (_compares, "traced-condition", "Attempted boolean conversion", "if x_ref[0, 0] > 0:"),
        (_masks, "mask-index", "a reference of shape (8, 128) is indexed by bool[8,128]", "> 0]"),
        (_leaks, "captured-constant", "The kernel function in", "def _leaks"),
        (_makes_a_constant, "captured-constant", "The kernel function in", "def _makes"),
        (_asks_for_an_argument, None, "_store() missing 1 required", "@pl.when"),
    ],
)
def test_what_jax_does_not_say(body: Any, entry: str | None, message: str, text: str) -> None:
    x = jax.ShapeDtypeStruct((16, 128), "float32")
    call = pl.pallas_call(body, out_shape=x, grid=(2,), out_specs=ROWS)
    with raised.with_all_frames(), pytest.raises(Exception) as error:  # of several classes
        jax.jit(call).trace(x)
    failure = raised.failure(error.value)
    assert message in failure.message
    assert failure.source is not None
    assert failure.source.text is not None
    assert text in failure.source.text
    assert (failure.explanation and failure.explanation.id) == entry


def test_a_spec_that_begins_with_its_index_map() -> None:
    def call(x: jax.Array) -> jax.Array:
        block: Any = lambda i: (i, 0)  # noqa: E731
        spec = pl.BlockSpec(block, (8, 128))  # type: ignore[arg-type]
        return pl.pallas_call(_slices, out_shape=x, grid=(2,), in_specs=[spec])(x)

    with raised.with_all_frames(), pytest.raises(TypeError) as error:
        jax.jit(call).trace(jax.ShapeDtypeStruct((16, 128), "float32"))
    failure = raised.failure(error.value)
    assert failure.message.startswith("the shape of a block is a function: ")
    assert failure.explanation is not None
    assert failure.explanation.id == "block-shape-type"
    assert failure.source is not None
    assert failure.source.text is not None
    assert "lambda i: (i, 0)" in failure.source.text


def test_the_copy_that_makes_a_module_invalid() -> None:
    def start(*refs: Any) -> None:
        pltpu.make_async_copy(*refs).start()

    def body(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        start(x_ref.at[pl.ds(0, 8)], o_ref.at[pl.ds(0, 8)], semaphore)
        start(x_ref.at[pl.ds(0, 16)], o_ref, semaphore)

    def call(x: jax.Array) -> Any:
        out = jax.ShapeDtypeStruct((8, 128), x.dtype)
        any_ = pl.BlockSpec(memory_space=pl.ANY)
        semaphores = [pltpu.SemaphoreType.DMA]
        return pl.pallas_call(body, out, in_specs=[any_], scratch_shapes=semaphores)(x)

    x = jax.ShapeDtypeStruct((16, 128), "float32")
    (found,) = pallas_debug.verify(call, x, targets="v5e", engines="compile").findings
    assert found.kind == "InvalidOperation"
    assert found.witness.line is not None
    shown = linecache.getline(*found.witness.line).strip()
    assert shown == "pltpu.make_async_copy(*refs).start()"
    assert found.cause == (
        "a copy does not broadcast: its source and destination need the same shape; jax reports "
        "this as an internal error"
    )


def jax_function(statement: str) -> Any:
    """A function of one statement, as if jax had it."""
    file = "/python/site-packages/jax/_src/pallas/mosaic/pipeline.py"
    text = f"def advance():\n  {statement}\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found: dict[str, Any] = {}
    exec(compile(text, file, "exec"), found)
    return found["advance"]


def test_an_assertion_of_jax_names_the_line_of_the_kernel_that_led_there() -> None:
    advance = jax_function("assert not __name__")

    def call(x: jax.Array) -> jax.Array:
        def body(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
            advance()
            o_ref[...] = x_ref[...]

        return pl.pallas_call(body, out_shape=x)(x)

    x = jax.ShapeDtypeStruct((8, 128), "float32")
    with pytest.raises(AssertionError) as bare:
        jax.jit(call).trace(x)
    assert type(bare.value) is AssertionError
    with pallas_debug.interpret("machine"), pytest.raises(JaxAssertionError) as error:
        jax.jit(call).lower(x)
    assert isinstance(error.value, AssertionError)
    messages = str(error.value).splitlines()
    assert messages[0] == (
        "an assertion of jax's failed: `assert not __name__` in advance "
        "(jax/_src/pallas/mosaic/pipeline.py:2), while jax traced the kernel"
    )
    assert messages[1].endswith("   advance()")
    assert "the assertion is in jax, not in the kernel" in messages[2]
    failure = raised.failure(error.value)
    assert failure.message == messages[0]
    assert failure.source is not None
    assert failure.source.text == "advance()"
    assert failure.explanation is not None


def _of_a_callback(*last: str) -> RuntimeError:
    """An exception in the words in which jax passes on one that a callback raised."""
    frames = ['  File "jax/_src/callback.py", line 440, in io_callback_impl', "    raise"]
    traceback = ["Traceback (most recent call last):", *frames, *last]
    return RuntimeError("INTERNAL: CpuCallback error calling callback: " + "\n".join(traceback))


@pytest.mark.parametrize(
    "error, message",
    [
        (ValueError("no such axis\nat all"), "ValueError: no such axis"),
        (_of_a_callback("IndexError: row 9 of 8", "", "note"), "IndexError: row 9 of 8"),
        (_of_a_callback("KernelFault: DataRace in kernel `rows`"), "DataRace in kernel `rows`"),
    ],
    ids=["its own", "wrapped", "a fault"],
)
def test_an_exception_in_a_line(error: Exception, message: str) -> None:
    assert raised.in_a_line(error) == message


def test_a_member_that_an_enum_of_jax_does_not_have() -> None:
    """Python's own library raises it, and 3.11 says no more than the name."""
    with pytest.raises(AttributeError) as gone:
        _ = pltpu.MemorySpace.ANY
    assert raised.raiser(gone.value) == ""
    failure = raised.failure(gone.value)
    assert failure.message == "type object 'MemorySpace' has no attribute 'ANY'"
    assert failure.explanation is not None
    assert failure.explanation.id == "removed-name"
    finding = failed(Sighting(kernel="", engine="trace"), failure)
    assert (finding.kind, finding.advice) == ("RemovedName", "write pl.ANY")
