"""What jax and the TPU compiler say of each kernel that is wrong on purpose, and of its twin."""

from collections.abc import Callable, Iterator

import jax
import pytest
from broken_kernels import BROKEN, BrokenKernel, JaxEngine, Reaction, Verdict

from pallas_debug.bridge.lowering import trace
from pallas_debug.model import Compilation, Failure
from pallas_debug.session import Options, Session

TARGETS = ("v5e", "v4", "v5p", "v6e", "tpu7x")

each = pytest.mark.parametrize("kernel", BROKEN, ids=lambda kernel: kernel.name)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One for all kernels: the compiler's process is started once, and after an abort."""
    options = Options(
        dumps=tmp_path_factory.mktemp("broken") / "dumps",
        targets=TARGETS,
        interpret="off",
        jobs=1,
    )
    with Session(options) as session:
        yield session
    assert session.problems == []


def compilations(
    session: Session, kernel: BrokenKernel, function: Callable[..., jax.Array]
) -> dict[str, Compilation]:
    """Of the one kernel that `function` calls, for each target that something is known of."""
    targets = [target for target in session.targets if target.name in kernel.targets]
    with jax.enable_x64(kernel.x64), session.collecting() as captures:
        trace.lower_for_kernels(function, kernel.args, {}, targets[0])
    (captured,) = captures
    session.request(captures, targets)
    session.wait()
    (dump,) = (d for d in session.dumps if d.kernel.digest == captured.kernel.digest)
    return {compilation.target: compilation for compilation in dump.compilations}


@each
def test_broken(session: Session, kernel: BrokenKernel) -> None:
    traced = kernel.expectation(JaxEngine.TRACE)
    if traced.outcome is Reaction.RAISES:
        with pytest.raises((TypeError, ValueError)) as error:
            compilations(session, kernel, kernel.function)
        assert traced.message in str(error.value)
        return
    found = compilations(session, kernel, kernel.function)
    assert set(found) == set(kernel.targets)
    for target, compilation in found.items():
        for stage in (JaxEngine.LOWER, JaxEngine.COMPILE):
            verdict = kernel.expectation(stage, target=target)
            if verdict.outcome is not Reaction.NOT_APPLICABLE:
                check(stage, verdict, compilation.failure)
        if compilation.failure is not None:
            check_line(kernel, compilation.failure)


STAGES = {"lowering": JaxEngine.LOWER, "compile": JaxEngine.COMPILE, "crash": JaxEngine.COMPILE}


def check(engine: Engine, verdict: Verdict, failure: Failure | None) -> None:
    """The failure, if it is that of `engine`, is what was expected of it."""
    if failure is not None and STAGES[failure.stage] is not engine:
        assert engine is JaxEngine.LOWER, failure
        failure = None
    if verdict.outcome is Reaction.PASSES:
        assert failure is None
        return
    assert failure is not None
    assert verdict.message in failure.message
    assert (failure.stage == "crash") == (verdict.outcome is Reaction.ABORTS)


def check_line(kernel: BrokenKernel, failure: Failure) -> None:
    """Where the failure names a line of the kernel, it is the line at fault.

    Of an index map that returns an int64 the compiler names the kernel's first line alone, and of
    a block shape jax names the kernel function.
    """
    source = failure.source
    if source is None or source.file != kernel.file or kernel.x64:
        return
    if "block shape" in failure.message:
        assert source.text is not None
        assert source.text.startswith("def ")
    else:
        assert source.line == kernel.line


@pytest.mark.slow
@each
def test_repaired(session: Session, kernel: BrokenKernel) -> None:
    for compilation in compilations(session, kernel, kernel.repaired).values():
        assert compilation.failure is None
