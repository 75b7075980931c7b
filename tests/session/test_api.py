"""`pallas_debug.debug` as decorator and context manager, as a program uses it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import vector_add

import pallas_debug
from pallas_debug._api import debug as api
from pallas_debug.errors import DumpDirectoryError, NoDumpsError, UnknownTargetError, UsageError
from pallas_debug.store import open_dumps

X = np.ones(1024, np.float32)


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "_printed", set())
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_bare_decorator(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    @pallas_debug.debug
    def added(x: Any) -> Any:
        """Adds."""
        return vector_add(x, x)

    assert added.__name__ == "added"
    assert added.__doc__ == "Adds."
    np.testing.assert_array_equal(added(X), 2 * X)
    (kernel,) = open_dumps(tmp_path / "dumps").kernels()
    assert [c.target for c in kernel.compilations] == ["v5e"]
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "pallas-debug: 1 kernel for v5e in dumps",
        "next: pallas-debug report dumps",
    ]
    added(X)  # the same again: nothing is compiled, and there is nothing to say
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_a_decorator_with_options(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @pallas_debug.debug(targets=["v6e", "v5p"], to=tmp_path / "there", quiet=True)
    def added(x: Any) -> Any:
        return vector_add(x, x)

    added(X)
    (kernel,) = open_dumps(tmp_path / "there").kernels()
    assert {c.target for c in kernel.compilations} == {"v6e", "v5p"}
    assert capfd.readouterr().err == ""


def doubled(x: Any, scale: int = 2) -> Any:
    return vector_add(x, x) * scale


WITH_TARGETS: dict[str, Callable[[Any], Any]] = {
    "dump": lambda given: pallas_debug.dump(doubled, X, targets=given),
    "stats": lambda given: pallas_debug.stats(doubled, X, target=given, estimate=False),
    "verify": lambda given: pallas_debug.verify(doubled, X, targets=given, engines="static"),
    "sweep": lambda given: pallas_debug.sweep(
        doubled, over={"scale": [1]}, args=(X,), targets=given
    ),
    "debug": lambda given: pallas_debug.debug(doubled, targets=given)(X),
    "compile": lambda given: pallas_debug.compile(doubled, chip=given),
    "check": lambda given: pallas_debug.check(doubled, chip=given)(X),
    "interpret": lambda given: pallas_debug.interpret("hlo", chip=given)(doubled)(X),
}


@pytest.mark.parametrize("name", WITH_TARGETS)
def test_targets_are_alike_in_every_function(name: str) -> None:
    call = WITH_TARGETS[name]
    with pytest.raises(UsageError, match="given by its name, such as 'v5e', and 5 is not a name"):
        call(5)
    with pytest.raises(UnknownTargetError, match="unknown target 'v5'"):
        call(" v5")
    if name in ("dump", "verify", "sweep", "stats"):  # the others have work without one
        with pytest.raises(UsageError, match=r"needs a target|for a target, but '' lists none"):
            call("")


def test_a_function_that_is_called_again_is_not_traced_again() -> None:
    traced = []

    @jax.jit
    def inner(x: Any) -> Any:
        traced.append(1)
        return vector_add(x, x)

    added = pallas_debug.debug(targets="", quiet=True)(inner)
    for _ in range(3):
        added(X)
    assert len(traced) == 1


def test_a_with_block_gives_the_session(tmp_path: Path) -> None:
    with pallas_debug.debug(to=tmp_path / "d", targets="v6e", quiet=True) as session:
        vector_add(X, X)
    assert repr(session) == "<Session: vector_add>"
    (dump,) = session.dumps
    assert dump.compilation("v6e").ok
    assert dump.kernel.name == "vector_add"
    assert dump.folder.parent == tmp_path / "d"


def test_blocks_nest(tmp_path: Path) -> None:
    with (
        pallas_debug.debug(to=tmp_path / "outer", targets="", quiet=True),
        pallas_debug.debug(to=tmp_path / "inner", targets="", quiet=True),
    ):
        vector_add(X, X)
    for name in ("outer", "inner"):
        assert len(open_dumps(tmp_path / name).kernels()) == 1


def test_an_exception_of_the_program_is_its_own_and_its_kernels_are_kept(tmp_path: Path) -> None:
    @pallas_debug.debug(to=tmp_path / "d", quiet=True)
    def fails(x: Any) -> Any:
        vector_add(x, x)
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        fails(X)
    assert open_dumps(tmp_path / "d").kernels()[0].compilations[0].compilation is not None


def test_a_failing_kernel_is_reported_and_raises_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from jax.experimental import pallas as pl

    def sums(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.cumsum(x_ref[...], axis=0)

    with pallas_debug.debug(to=tmp_path / "d"):
        out = pl.pallas_call(sums, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))(
            jnp.ones((8, 128))
        )
    assert out[-1, 0] == 8
    output = capfd.readouterr().err
    assert "v5e: failed (lowering): " in output
    assert f"{Path(__file__).name}:" in output
    assert "next: pallas-debug explain d/sums-" in output


def test_wrong_options_are_refused_on_entering(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpDirectoryError), pallas_debug.debug(to=tmp_path / "file"):
        pass


def test_a_dump_with_arguments_of_every_sort(tmp_path: Path) -> None:
    def scaled(operands: dict[str, Any], scale: float, *, name: str) -> Any:
        assert isinstance(scale, float)
        assert name == "static"
        return vector_add(operands["x"] * scale, operands["y"])

    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    (dump,) = pallas_debug.dump(scaled, {"x": x, "y": X}, 2.0, name="static", to=tmp_path / "d")
    assert dump.ok
    (run,) = open_dumps(tmp_path / "d").runs()
    assert run.kernels == (dump.name,)
    assert run.gaps == ()  # recorded when it was compiled
    assert "scaled" in run.name


@pytest.mark.slow
def test_a_kernel_whose_code_asks_for_its_chip_is_compiled_for_that_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def scaled(x: Any) -> Any:
        factor = pltpu.get_tpu_info().generation

        def scale(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * factor

        return pl.pallas_call(scale, out_shape=x)(x)

    x = jnp.ones((8, 128))
    decorated = pallas_debug.debug(targets="v5e,v6e", to=tmp_path, interpret="hlo")(scaled)
    assert decorated(x)[0, 0] == 5
    (kernel,) = open_dumps(tmp_path).kernels()
    assert [c.target for c in kernel.compilations] == ["v5e"]
    assert (
        "pallas-debug: kernel `scale` was not compiled for v6e: the code queried its chip and got "
        "TPU v5 lite; for v6e it may call another kernel. pallas_debug.dump traces the function for "
        "each chip"
    ) in capfd.readouterr().err.splitlines()
    dumps = pallas_debug.dump(scaled, x, targets="v5e,v6e", to=tmp_path)
    assert [[c.target for c in dump.compilations] for dump in dumps] == [["v5e"], ["v6e"]]
    assert [dump.kernel.chip for dump in dumps] == ["TPU v5 lite", "TPU v6 lite"]
    with pytest.raises(KeyError, match="was not compiled for 'v6e'; it was for: v5e"):
        dumps[0].compilation("v6e")


def plain(x: jax.Array) -> jax.Array:
    return x + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: pallas_debug.check(plain, "nans"),
        lambda: pallas_debug.interpret("tpuu"),
        lambda: pallas_debug.interpret("tpu,detect_races", detect_races=True),
        lambda: pallas_debug.dump(plain, 1.0, stages="lloo"),
        lambda: pallas_debug.stats(plain, 1.0, target="v5e,v6e"),
        lambda: pallas_debug.stats(plain, 1.0),
        lambda: pallas_debug.verify(plain, 1.0, engines="chekcs"),
        lambda: pallas_debug.verify(plain),
        lambda: pallas_debug.open_dumps("nowhere"),
        lambda: pallas_debug.open_dumps(__file__),
        lambda: pallas_debug.open_dumps(Path(__file__).parent).find("nothing"),
    ],
)
def test_a_wrong_call_is_shown_without_frames_of_ours(call: Callable[[], object]) -> None:
    with pytest.raises((UsageError, NoDumpsError)) as raised:
        call()
    assert raised.value.__cause__ is None
    files = {Path(frame.filename) for frame in traceback.extract_tb(raised.tb)}
    assert files == {Path(__file__)}


def test_a_call_that_python_refuses_is_no_finding() -> None:
    with pytest.raises(UsageError) as missing:
        pallas_debug.verify(plain)
    assert str(missing.value).startswith(
        "pallas_debug.verify cannot call plain with these arguments: missing a required argument: "
        "'x'. Its signature: plain(x: "
    )


@pytest.mark.parametrize(
    "verb, given, meant",
    [("verify", "target", "targets"), ("stats", "targets", "target"), ("compare", "rtoll", "rtol")],
)
def test_a_misspelt_argument_is_suggested(verb: str, given: str, meant: str) -> None:
    function = getattr(pallas_debug, verb)
    functions = (plain, plain) if verb == "compare" else (plain,)
    with pytest.raises(UsageError) as raised:
        function(*functions, 1.0, **{given: "v5e"})
    assert str(raised.value).endswith(
        f"pallas_debug.{verb} has no argument {given!r} (did you mean {meant!r}?)"
    )
