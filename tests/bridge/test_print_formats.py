"""Prints that a TPU does not support: our messages and what jax and libtpu do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import mlir
from jax.experimental import pallas as pl

from pallas_debug.bridge import versions
from pallas_debug.bridge.instrument import print_formats
from pallas_debug.compiler.pool import Pool, PoolSettings

LIBTPU = tuple(int(part) for part in versions.installed()["libtpu"].split(".")[:3])
JAX = tuple(int(part) for part in versions.installed()["jax"].split(".")[:2])
OLD_JAX = JAX < (0, 11)
ABORTS = LIBTPU <= (0, 0, 42)

Print = Callable[[Any, Any], object]

P = pl.debug_print
INTEGERS = "int32 and uint32" if OLD_JAX else "int32, uint32 and float32"

ALLOWED: dict[str, Print] = {
    "a text": lambda i, x: P("hello"),
    "nothing": lambda i, x: P(""),
    "int32": lambda i, x: P("v {}", i),
    "uint32": lambda i, x: P("v {}", i.astype(jnp.uint32)),
    "a number of Python's": lambda i, x: P("v {}", 3),
    "two": lambda i, x: P("{} of {}", i, i + 1),
    "sixty-four": lambda i, x: P("{} " * 64, *[i] * 64),
    "float32 behind a text": lambda i, x: P("v", x[0, 0]),
    "two float32 behind a text": lambda i, x: P("v", x[0, 0], x[0, 1]),
    "braces behind the last": lambda i, x: P("v {} }}", i),
    "braces alone": lambda i, x: P("v {{}}"),
    "dollars and percents": lambda i, x: P("$0 %d %s {} $", i),
    "no ASCII": lambda i, x: P("größer als → {}", i),
    "a line's end": lambda i, x: P("v\n {}", i),
    "a zero byte": lambda i, x: P("v\0 {}", i),
    "100,000 bytes": lambda i, x: P("v" * 100_000 + " {}", i),
    "an array": lambda i, x: P("x {}", x[...]),
    "an array behind text with a field": lambda i, x: P("{} x {}", x[...]),
    "part of an array": lambda i, x: P("x {}", x[0:3, 0:5]),
    "a row": lambda i, x: P("x {}", x[0]),
    "three dimensions": lambda i, x: P("x {}", x[...].reshape(4, 8, 256)),
    "int32 array": lambda i, x: P("x {}", x[...].astype(jnp.int32)),
    "bfloat16 array": lambda i, x: P("x {}", x[...].astype(jnp.bfloat16)),
    "int8 array": lambda i, x: P("x {}", x[...].astype(jnp.int8)),
    "jax.debug.print": lambda i, x: jax.debug.print("v {}", i),
}  # fmt: skip

REFUSED: dict[str, tuple[Print, str]] = {
    "a spec": (lambda i, x: P("v {:03d}", i), "'v {:03d}' has the format spec `:03d`"),
    "a conversion": (lambda i, x: P("v {!r}", i), "'v {!r}' has the format spec `!r`"),
    "a position": (lambda i, x: P("v {0}", i), "'v {0}' has the field `{0}`"),
    "a name": (lambda i, x: jax.debug.print("v {i}", i=i), "'i' is a keyword argument"),
    "too few": (lambda i, x: P("v {} {}", i), "'v {} {}' expects 2 arguments, not 1"),
    "too many": (lambda i, x: P("v {}", i, i), "'v {}' expects 1 argument, not 2"),
    "bfloat16": (
        lambda i, x: P("v {}", x[0, 0].astype(jnp.bfloat16)),
        f"of type bfloat16 is printed with a `{{}}`, which takes only {INTEGERS}",
    ),
    "int16": (lambda i, x: P("v {}", i.astype(jnp.int16)), "a scalar of type int16 is printed"),
    "bool": (lambda i, x: P("v {}", i > 0), "a scalar of type bool is printed with a `{}`"),
    "a ref": (lambda i, x: P("v {}", x), "a ref is printed instead of its value"),
    "a string": (lambda i, x: P("v {}", "text"), "'text' is not an array"),
    "an array and a scalar": (
        lambda i, x: P("{} {}", i, x[...]), "int32[] and float32[32, 256] are printed together"
    ),
    "an array within a text": (lambda i, x: P("x {} !", x[...]), "with 'x {} !', which does not"),
    "an array behind a text": (lambda i, x: P("x", x[...]), "an array is printed with 'x', which"),
    "an array with a spec": (lambda i, x: P("x {:f}", x[...]), "with 'x {:f}', which does not end"),
    "a lone surrogate": (lambda i, x: P("v\udc80 {}", i), r"has the lone surrogate '\udc80'"),
    "ordered": (lambda i, x: jax.debug.print("v {}", i, ordered=True), "it is ordered"),
}  # fmt: skip


def kernel(printing: Print) -> tuple[Callable[[Any], Any], Any]:
    def print_kernel(x_ref: Any, o_ref: Any) -> None:
        printing(pl.program_id(0), x_ref)
        o_ref[...] = x_ref[...]

    x = jax.ShapeDtypeStruct((32, 256), jnp.float32)
    return pl.pallas_call(print_kernel, out_shape=x, grid=(1,), name="prints"), x


def findings(printing: Print) -> tuple[Any, ...]:
    call, x = kernel(printing)
    (eqn,) = (e for e in jax.make_jaxpr(call)(x).eqns if e.primitive.name == "pallas_call")
    assert print_formats.count(eqn.params) == 1
    return print_formats.findings("prints", eqn.params)


def lower(printing: Print) -> bytes:
    call, x = kernel(printing)
    lowered = jax.jit(call).trace(x).lower(lowering_platforms=("tpu",))
    bytecode: bytes = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
    return bytecode


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(PoolSettings(jobs=1)) as pool:
        yield pool


def compiled(pool: Pool, module: bytes) -> str | None:
    """None where it compiled, else what libtpu said."""
    options = {"xla_tpu_enable_log_recorder": "true"}
    with pool.compile(module, topology="v5e:2x2", options=options) as outcome:
        if outcome.reply is None:
            return outcome.log.decode(errors="replace")
        return outcome.reply.error


@pytest.mark.slow
@pytest.mark.parametrize("name", ALLOWED)
def test_nothing_is_said_of_what_compiles(name: str, pool: Pool) -> None:
    assert findings(ALLOWED[name]) == ()
    assert compiled(pool, lower(ALLOWED[name])) is None


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_said_before(name: str) -> None:
    printing, expected = REFUSED[name]
    (finding,) = findings(printing)
    assert expected in finding.message
    assert finding.cause
    assert finding.advice
    assert (finding.kind, finding.kernel, finding.engines) == (
        "PrintNotSupported", "prints", ("print formats",),
    )  # fmt: skip
    assert finding.source is not None
    assert Path(finding.source.file) == Path(__file__)
    assert re.search(r"\bP\(|debug\.print\(", finding.source.text or "")
    with pytest.raises(Exception) as caught:
        lower(printing)
    assert caught.type.__name__ in (
        "ValueError", "TypeError", "NotImplementedError", "AttributeError", "VerificationError",
    )  # fmt: skip


def test_a_float_with_a_placeholder(pool: Pool) -> None:
    def printing(i: Any, x: Any) -> None:
        P("v {}", x[0, 0])

    if not OLD_JAX:
        assert findings(printing) == ()
        assert compiled(pool, lower(printing)) is None
        return
    (finding,) = findings(printing)
    assert finding.message.endswith("`{}`, which takes only int32 and uint32")
    assert finding.advice == "print `x.astype(jnp.float32)` after the text, without a `{}` for it"
    with pytest.raises(TypeError, match="must be 32-bit integers"):
        lower(printing)


@pytest.mark.parametrize("fmt", ["{} of {{ {}", "a {} }} {}"])
def test_a_brace_between_placeholders(fmt: str) -> None:
    def printing(i: Any, x: Any) -> None:
        P(fmt, i, i)

    (finding,) = findings(printing)
    assert f"{fmt!r} has a `{{{{` or `}}}}` before a `{{}}`" in finding.message
    if OLD_JAX:  # which counts on, and compiles a placeholder that has no argument
        assert lower(printing)
    else:
        with pytest.raises(IndexError):
            lower(printing)


def test_an_array_of_booleans(pool: Pool) -> None:
    def printing(i: Any, x: Any) -> None:
        P("x {}", x[...] > 0)

    (finding,) = findings(printing)
    assert finding.message == "an array of booleans is printed: bool[32, 256]"
    assert "bitwidth" in (compiled(pool, lower(printing)) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "printing,dtype",
    [
        (lambda i, x: P("v", i), "int32"),
        (lambda i, x: P("v {{", i), "int32"),
        (lambda i, x: P("{{}} {}", i), "int32"),
        (lambda i, x: P("v", x[0, 0], i), "int32"),
        (lambda i, x: P("v", i > 0), "bool"),
        (lambda i, x: P("v", i.astype(jnp.int16)), "int16"),
    ],
)
def test_a_scalar_without_a_placeholder(printing: Print, dtype: str, pool: Pool) -> None:
    found = findings(printing)
    message = compiled(pool, lower(printing))
    if not ABORTS:
        assert (found, message) == ((), None)
        return
    assert "Signedness cannot be inferred" in (message or "")
    (finding,) = found
    assert finding.message == (
        f"a scalar of type {dtype} is printed without a `{{}}` for it: libtpu 0.0.42 aborts"
    )


PIECES = ("{}", "{}", "{{", "}}", "a", " ", "{0}", "{:d}", "{x}", "{!s}", "{", "}", "$0", "%s", "é")


@pytest.mark.parametrize("seed", range(60))
def test_hostile_format_strings(seed: int) -> None:
    """Whatever is written: nothing is said where jax lowers it, and something where it does not."""
    random = Random(seed)
    fmt = "".join(random.choices(PIECES, k=random.randint(1, 6)))

    def printing(i: Any, x: Any) -> None:
        P(fmt, *[i] * fmt.count("{}"))

    try:
        found = findings(printing)
    except ValueError as error:  # jax itself refuses the first field, as it traces
        assert "encountered in format string" in str(error) or "expected '}'" in str(error)  # noqa: PT017
        return
    try:
        lower(printing)
    except (ValueError, TypeError, IndexError):
        assert len(found) == 1, fmt
        return
    # Here it compiles, and comes out wrong, or kills the compiler.
    behind = found and ("before a `{}`" in found[0].message or "without a `{}`" in found[0].message)
    assert not found or behind, (fmt, found)


def test_a_format_string_that_is_none() -> None:
    def printing(i: Any, x: Any) -> None:
        P("{} {", i)

    (finding,) = findings(printing)
    assert finding.message == (
        "the format string '{} {' is invalid: Single '{' encountered in format string"
    )
    with pytest.raises(ValueError, match=r"Single '\{'"):
        lower(printing)


def test_prints_within_branches_and_loops_are_seen_each_at_its_line() -> None:
    def nested_kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            P("first {:d}", pl.program_id(0))

        def step(i: Any, carry: Any) -> Any:
            P("second {0}", i)
            P("third {}", i)
            return carry

        jax.lax.fori_loop(0, 3, step, 0)
        o_ref[...] = x_ref[...]

    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    call = pl.pallas_call(nested_kernel, out_shape=x, grid=(1,))
    (eqn,) = (e for e in jax.make_jaxpr(call)(x).eqns if e.primitive.name == "pallas_call")
    assert print_formats.count(eqn.params) == 3
    found = print_formats.findings("nested", eqn.params)
    assert [f.source.text for f in found if f.source] == [
        'P("first {:d}", pl.program_id(0))',
        'P("second {0}", i)',
    ]
    assert [f.values["format"] for f in found] == ["'first {:d}'", "'second {0}'"]


def test_a_kernel_without_prints_has_none() -> None:
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)

    def copy_kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    call = pl.pallas_call(copy_kernel, out_shape=x)
    (eqn,) = (e for e in jax.make_jaxpr(call)(x).eqns if e.primitive.name == "pallas_call")
    assert print_formats.count(eqn.params) == 0
    assert print_formats.findings("copy", eqn.params) == ()
