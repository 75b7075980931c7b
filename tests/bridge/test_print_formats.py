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
RECORDER = "on a TPU, the log recorder formats prints"
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

INT32 = "print `x.astype(jnp.float32)`, or write a `{}` for it, and no other brace"

Words = tuple[str, str, str]

REFUSED: dict[str, tuple[Print, Words]] = {
    "a spec": (lambda i, x: P("v {:03d}", i), (
        "the format string 'v {:03d}' has the format spec `:03d`",
        f"{RECORDER} and supports only `{{}}`",
        "write `{}`; to print fewer digits, round the number in the kernel",
    )),
    "a conversion": (lambda i, x: P("v {!r}", i), (
        "the format string 'v {!r}' has the format spec `!r`",
        f"{RECORDER} and supports only `{{}}`",
        "write `{}`; to print fewer digits, round the number in the kernel",
    )),
    "a position": (lambda i, x: P("v {0}", i), (
        "the format string 'v {0}' has the field `{0}`",
        f"{RECORDER} and takes only positional arguments",
        "write `{}`, and pass the values in that order",
    )),
    "a name": (lambda i, x: jax.debug.print("v {i}", i=i), (
        "'i' is a keyword argument",
        f"{RECORDER} and takes only positional arguments",
        "write `{}` for `{i}`, and pass the value by position",
    )),
    "too few": (lambda i, x: P("v {} {}", i), (
        "the format string 'v {} {}' expects 2 arguments, not 1",
        f"{RECORDER}: each `{{}}` takes one argument",
        "write as many `{}` as there are values",
    )),
    "too many": (lambda i, x: P("v {}", i, i), (
        "the format string 'v {}' expects 1 argument, not 2",
        f"{RECORDER}: each `{{}}` takes one argument",
        "write as many `{}` as there are values",
    )),
    "bfloat16": (lambda i, x: P("v {}", x[0, 0].astype(jnp.bfloat16)), (
        "a scalar of type bfloat16 is printed with a `{}`",
        f"{RECORDER}: in this jax, `{{}}` takes only {INTEGERS}",
        "print `x.astype(jnp.float32)` after the text, without a `{}` for it"
        if OLD_JAX else "print `x.astype(jnp.float32)`",
    )),
    "int16": (lambda i, x: P("v {}", i.astype(jnp.int16)), (
        "a scalar of type int16 is printed with a `{}`",
        f"{RECORDER}: in this jax, `{{}}` takes only {INTEGERS}",
        "print `x.astype(jnp.int32)`",
    )),
    "bool": (lambda i, x: P("v {}", i > 0), (
        "a scalar of type bool is printed with a `{}`",
        f"{RECORDER}: in this jax, `{{}}` takes only {INTEGERS}",
        "print `x.astype(jnp.int32)`",
    )),
    "a ref": (lambda i, x: P("v {}", x), (
        "a ref is printed instead of its value",
        f"{RECORDER} and takes only values",
        "load it or one of its elements first, as in `x_ref[...]`",
    )),
    "a string": (lambda i, x: P("v {}", "text"), (
        "'text' is not an array",
        f"{RECORDER} and takes only numbers",
        "put it into the format string, if it is known while the kernel is traced",
    )),
    "an array and a scalar": (lambda i, x: P("{} {}", i, x[...]), (
        "int32[] and float32[32, 256] are printed together",
        f"{RECORDER}: any number of scalars, or a single array",
        "print each array in a separate `pl.debug_print`",
    )),
    "an array within a text": (lambda i, x: P("x {} !", x[...]), (
        "an array is printed with the format string 'x {} !', which does not end in its only `{}`",
        f"{RECORDER}: an array must follow the text",
        "end the format string in `{}`, without `{{` or `}}` before it",
    )),
    "an array behind a text": (lambda i, x: P("x", x[...]), (
        "an array is printed with the format string 'x', which does not end in its only `{}`",
        f"{RECORDER}: an array must follow the text",
        "end the format string in `{}`, without `{{` or `}}` before it",
    )),
    "an array with a spec": (lambda i, x: P("x {:f}", x[...]), (
        "an array is printed with the format string 'x {:f}', which does not end in its only `{}`",
        f"{RECORDER}: an array must follow the text",
        "end the format string in `{}`, without `{{` or `}}` before it",
    )),
    "a lone surrogate": (lambda i, x: P("v\udc80 {}", i), (
        r"the format string 'v\udc80 {}' has the lone surrogate '\udc80'",
        "it is stored in the compiled program as UTF-8, which cannot encode lone surrogates",
        "remove it",
    )),
    "ordered": (lambda i, x: jax.debug.print("v {}", i, ordered=True), (
        "it is ordered",
        "a kernel prints only in the order of its grid points",
        "remove `ordered=True`",
    )),
}  # fmt: skip

BRACES: Words = (
    "the format string '{} of {{ {}' has a `{{` or `}}` before a `{}`",
    "jax counts the brace as a placeholder, so the values after it go to the wrong ones",
    "put braces after the last `{}`, or use parentheses",
)

BOOLEANS: Words = (
    "an array of booleans is printed: bool[32, 256]",
    "libtpu rejects boolean buffers or aborts",
    "print `x.astype(jnp.int32)`",
)


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


def words(finding: Any) -> Words:
    return finding.message, finding.cause, finding.advice


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
    assert words(finding) == expected
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
    assert words(finding) == (
        "a scalar of type float32 is printed with a `{}`",
        f"{RECORDER}: in this jax, `{{}}` takes only int32 and uint32",
        "print `x.astype(jnp.float32)` after the text, without a `{}` for it",
    )
    with pytest.raises(TypeError, match="must be 32-bit integers"):
        lower(printing)


@pytest.mark.parametrize("fmt", ["{} of {{ {}", "a {} }} {}"])
def test_a_brace_between_placeholders(fmt: str) -> None:
    def printing(i: Any, x: Any) -> None:
        P(fmt, i, i)

    (finding,) = findings(printing)
    assert words(finding) == (BRACES[0].replace("{} of {{ {}", fmt), *BRACES[1:])
    if OLD_JAX:  # which counts on, and compiles a placeholder that has no argument
        assert lower(printing)
    else:
        with pytest.raises(IndexError):
            lower(printing)


def test_an_array_of_booleans(pool: Pool) -> None:
    def printing(i: Any, x: Any) -> None:
        P("x {}", x[...] > 0)

    (finding,) = findings(printing)
    assert words(finding) == BOOLEANS
    assert "bitwidth" in (compiled(pool, lower(printing)) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "printing,dtype,advice",
    [
        (lambda i, x: P("v", i), "int32", INT32),
        pytest.param(
            lambda i, x: P("v {{", i),
            "int32",
            INT32,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda i, x: P("{{}} {}", i),
            "int32",
            INT32,
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda i, x: P("v", x[0, 0], i), "int32", INT32, marks=pytest.mark.slow),
        (lambda i, x: P("v", i > 0), "bool", "print `x.astype(jnp.float32)`"),
        pytest.param(
            lambda i, x: P("v", i.astype(jnp.int16)),
            "int16",
            "print `x.astype(jnp.float32)`",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_scalar_without_a_placeholder(
    printing: Print, dtype: str, advice: str, pool: Pool
) -> None:
    found = findings(printing)
    message = compiled(pool, lower(printing))
    if not ABORTS:
        assert (found, message) == ((), None)
        return
    assert "Signedness cannot be inferred" in (message or "")
    (finding,) = found
    assert re.fullmatch(
        rf"a scalar of type {dtype} is printed without a `{{}}` for it, after '.*'",
        finding.message,
    )
    assert finding.cause == ("libtpu 0.0.42 aborts at that: without a `{}` it takes only float32")
    assert finding.advice == advice


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
    assert words(finding) == (
        "the format string '{} {' is invalid: Single '{' encountered in format string",
        "while tracing a kernel, jax checks only the first field",
        "remove the brace, or double it after the last `{}`",
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
