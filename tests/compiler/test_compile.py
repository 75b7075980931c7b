"""From a worker's outcome to the compilation, its failure, and the files to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_debug.compiler import compile as compile_
from pallas_debug.compiler import targets
from pallas_debug.compiler.pool import Pool, RequestOutcome
from pallas_debug.compiler.protocol import Reply
from pallas_debug.model import Compilation, Failure, Kernel, SourceLine
from pallas_debug.store import Store, open_dumps

Module = Callable[[str], bytes]

DATA = Path(__file__).parents[1] / "store" / "data"
KERNEL = Kernel(name="add", digest="0123456789abcdef" * 4, primitive="pallas_call")
V5E = targets.resolve("v5e")


@pytest.mark.slow
def test_ok(shared: Pool, module: Module, tmp_path: Path) -> None:
    """From the compiler to the store and back."""
    store = Store(tmp_path)
    store.put_kernel(KERNEL, jaxpr="j", source=None)
    with shared.compile(module("add"), topology=V5E.topology) as outcome:
        compilation, files = finished(outcome)
        store.put_compilation(KERNEL, compilation, files)
        assert outcome.reply is not None
        assert compilation.memory == outcome.reply.memory
        assert compilation.versions == {"jax": "1", "build": outcome.reply.build}
        assert files["compiler.log"] == outcome.log
        assert len(compilation.passes) == len(outcome.dumps) - 2  # deserialized three times
    assert compilation.ok
    assert compilation.failure is None
    assert compilation.device_kind == "TPU v5 lite"
    assert 5 < len(compilation.changed_passes) < len(compilation.passes)
    kept = {p.file for p in compilation.passes if p.file}
    assert kept == {f"passes/{p.number:02d}-{p.name}.mlir" for p in compilation.changed_passes}
    assert set(files) == kept | {"compiler.log"}
    assert store.find_compilation(KERNEL, "v5e", "k") is not None
    target = open_dumps(tmp_path).find("add").target("v5e")
    assert target.compilation is not None
    assert set(target.compilation.files) == set(files)
    assert replace(target.compilation, files={}) == compilation
    assert "llo.vadd.f32" in target.text(target.find_pass("finalize-llo"))


@pytest.mark.slow
def test_refused_by_mosaic(shared: Pool, module: Module, kernels_file: Path) -> None:
    with shared.compile(module("misaligned"), topology=V5E.topology) as outcome:
        compilation, files = finished(outcome)
    assert not compilation.ok
    assert compilation.memory is None
    failure = compilation.failure
    assert failure is not None
    assert (failure.stage, failure.type) == ("compile", "JaxRuntimeError")
    assert "E2003" in failure.message
    assert failure.last_pass == "infer-vector-layout"
    lines = kernels_file.read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if "pl.ds(i_ref[0], 128)" in line)
    assert failure.source == SourceLine(file=str(kernels_file), line=number, function="misaligned")
    assert f"passes/{len(compilation.passes) - 1:02d}-infer-vector-layout.mlir" in files
    assert compilation.passes[-1].failed


def test_aborted(shared: Pool, module: Module, refusal: str | None) -> None:
    with shared.compile(module("aborting"), topology=V5E.topology) as outcome:
        compilation, files = finished(outcome)
    failure = compilation.failure
    assert failure is not None
    assert failure.last_pass == "infer-vector-layout"
    assert len(compilation.passes) > 8
    assert "passes/01-original.mlir" in files or "passes/00-deserialization.mlir" in files
    if refusal is not None:
        assert failure.stage == "compile"
        assert refusal in failure.message
        return
    assert (failure.stage, failure.type) == ("crash", "SIGABRT")
    assert failure.message.startswith(
        "the compiler's process died of SIGABRT while it compiled add; "
        "the last pass it wrote is infer-vector-layout. Its last output: F"
    )
    assert failure.message.endswith("Check failed: rem == 0 (1024 vs. 0)")
    assert compilation.seconds is None


def test_killed_before_any_pass() -> None:
    compilation, files = finished(
        RequestOutcome(reply=None, ended="SIGKILL", log=b"one\n\n two \n\n", dumps=())
    )
    failure = compilation.failure
    assert failure is not None
    assert failure.explanation is not None
    assert failure.explanation.id == "compiler-killed"
    assert replace(failure, explanation=None) == Failure(
        stage="crash",
        type="SIGKILL",
        message="the compiler's process died of SIGKILL while it compiled add; the last pass it "
        "wrote is none. Its last output: two\nMost likely the system killed it as memory "
        "ran out: try --jobs 1.",
    )
    assert compilation.device_kind == "TPU v5 lite"
    assert (compilation.passes, files) == ((), {"compiler.log": b"one\n\n two \n\n"})


@pytest.mark.parametrize(
    "log, words",
    [
        (b"", "none"),
        (b"\n \n", "none"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"F1120 14:45:48.8 1 layout.h:253] Check failed: a\n*** trace\n @ 0x1", None),
        (b"F1120 14:45:48.8 1 x.cc:1] went wrong\n @ 0x1", None),
        (b"E1120 1 an error\nI1120 1 chatter", "I1120 1 chatter"),
        (b"E1130 1 LLVM Fatal Error: a\nF1130 1 y.cc:4] *** Begin stack trace ***\n @ 0x1", None),
    ],
)
def test_last_words(log: bytes, words: str | None) -> None:
    outcome = RequestOutcome(reply=None, ended="SIGABRT", log=log, dumps=())
    failure = finished(outcome)[0].failure
    assert failure is not None
    expected = words or log.decode().splitlines()[0]
    assert failure.message == (
        "the compiler's process died of SIGABRT while it compiled add; "
        f"the last pass it wrote is none. Its last output: {expected}"
    )


def test_timeout_before_the_first_pass() -> None:
    outcome = RequestOutcome(reply=None, ended="timeout", log=b"", dumps=())
    failure = finished(outcome)[0].failure
    assert failure is not None
    assert failure.explanation is not None
    assert failure.explanation.id == "compiler-timeout"
    assert failure.is_undecided
    assert failure.message == (
        "the compiler was stopped after 1.5 s, before it wrote a pass: add was not judged. Allow "
        "more time with --timeout (--pallas-timeout in pytest)."
    )


def test_timeout() -> None:
    dumps = tuple((DATA / "libtpu-0.0.50" / "aborting").iterdir())
    outcome = RequestOutcome(
        reply=None, ended="timeout", log=b'at loc("k"("a.py":3:4))', dumps=dumps
    )
    failure = finished(outcome)[0].failure
    assert failure is not None
    assert failure.explanation is not None
    assert failure.explanation.id == "compiler-timeout"
    assert replace(failure, explanation=None) == Failure(
        stage="timeout",
        type="timeout",
        message="the compiler was stopped after 1.5 s, after it wrote the pass "
        "infer-vector-layout: add was not judged. Allow more time with --timeout "
        "(--pallas-timeout in pytest), or make the kernel smaller.",
        last_pass="infer-vector-layout",
        source=SourceLine(file="a.py", line=3, function="k"),
    )


@pytest.mark.parametrize(
    "locations, source",
    [
        (["a.py:3", "a.py:3"], SourceLine(file="a.py", line=3)),
        (["a.py:3", "a.py:4"], None),
        ([], None),
    ],
)
def test_the_failed_pass_names_the_line_where_the_message_does_not(
    tmp_path: Path, locations: list[str], source: SourceLine | None
) -> None:
    path = tmp_path / "1795185118477198487-0007-mosaic-dump-add-post-lower-to-llo-failed.txt"
    lines = [location.replace(":", '":') for location in locations]
    path.write_text("\n".join(f'%0 = a.b : i32 loc("{line}:1)' for line in lines))
    reply = Reply(seconds=1.0, error="went wrong", error_type="X")
    compilation, _ = finished(RequestOutcome(reply=reply, ended=None, log=b"", dumps=(path,)))
    assert compilation.failure == Failure(
        stage="compile", type="X", message="went wrong", last_pass="lower-to-llo", source=source
    )


def finished(outcome: RequestOutcome) -> tuple[Compilation, compile_.Files]:
    return compile_.finished(
        KERNEL,
        V5E,
        outcome,
        key="k",
        num_devices=2,
        flags=("--a=1",),
        versions={"jax": "1"},
        timeout=1.5,
    )
