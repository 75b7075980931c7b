"""The pytest plugin in real child runs: dumps, tracebacks, and runs without it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from marks import with_and_without_xdist

from pallas_debug.store import open_dumps

TESTS = """
import jax, jax.numpy as jnp, pytest
from pallas_debug_kernels import vector_add, matmul

@jax.jit
def add(x):
    return vector_add(x, x)

@pytest.mark.parametrize("i", range(3))
def test_add(i):
    assert add(jnp.ones(512))[0] == 2

def test_matmul():
    x = jnp.ones((128, 128))
    assert matmul(x, x)[0, 0] == 128

def test_without_kernels():
    pass
"""


Run = Callable[..., pytest.RunResult]
Sessions = Callable[..., list[pytest.RunResult]]


@pytest.fixture(autouse=True)
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(test_kernels=TESTS)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*arguments, timeout=240)


def used(directory: Path) -> dict[str, set[str]]:
    """Which kernels, by their own names, each test used."""
    return {
        record.name: {kernel.rpartition("-")[0] for kernel in record.kernels}
        for record in open_dumps(directory).runs()
    }


EXPECTED = {
    "test_kernels.py::test_add[0]": {"vector_add"},
    "test_kernels.py::test_add[1]": {"vector_add"},
    "test_kernels.py::test_add[2]": {"vector_add"},
    "test_kernels.py::test_matmul": {"matmul"},
}


@pytest.mark.slow
@with_and_without_xdist
def test_kernels_are_dumped_and_each_test_recorded_with_its_own(
    run_pytest: Run, pytester: pytest.Pytester, workers: list[str]
) -> None:
    result = run_pytest("--pallas-dump", "--pallas-target=v5e,v6e", *workers)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(
        [
            "pallas-debug *: dumping to dumps for v5e, v6e; kernels run in interpret mode auto",
            "*- pallas-debug -*",
            "2 kernels for v5e, v6e in dumps*, used by 4 tests",
            "next: pallas-debug report dumps",
        ]
    )
    assert used(pytester.path / "dumps") == EXPECTED
    assert {record.run for record in open_dumps(pytester.path / "dumps").runs()} != set()
    assert len({record.run for record in open_dumps(pytester.path / "dumps").runs()}) == 1
    for kernel in open_dumps(pytester.path / "dumps").kernels():
        assert [c.target for c in kernel.compilations] == ["v5e", "v6e"]
        made = [c.compilation for c in kernel.compilations]
        assert all(one is not None and one.ok and one.stages == ("bundles",) for one in made)


@pytest.mark.slow
def test_under_xdist_each_kernel_is_compiled_once(
    run_pytest: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import jax.numpy as jnp, pytest
        from pallas_debug_kernels import vector_add
        @pytest.mark.parametrize("i", range(8))
        def test_add(i):
            vector_add(jnp.ones(512), jnp.ones(512))
        """,
        conftest="""
        import os, pathlib
        from pallas_debug.compiler import pool
        original = pool.Pool.compile
        def compile(self, *args, **kwargs):
            path = pathlib.Path("compiled.txt")
            with path.open("a") as file:
                file.write(f"{os.getpid()}\\n")
            return original(self, *args, **kwargs)
        pool.Pool.compile = compile
        """,
    )
    run_pytest("--pallas-dump", "-n", "2", "--dist", "each").assert_outcomes(passed=16)
    assert len((pytester.path / "compiled.txt").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_kernel_that_fails_to_compile_is_in_the_summary_and_fails_no_test(
    run_pytest: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import jax.numpy as jnp
        from jax.experimental import pallas as pl
        def broken_kernel(x_ref, o_ref):
            o_ref[...] = jnp.cumsum(x_ref[...], axis=0)
        def test_broken():
            x = jnp.ones((8, 128))
            assert pl.pallas_call(broken_kernel, out_shape=x)(x)[-1, 0] == 8
        """
    )
    result = run_pytest("--pallas-dump")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "broken_kernel-* v5e: failed (lowering): *test_kernels.py:4: Unimplemented primitive*",
            "  unimplemented-primitive: interpret modes run any jax operation; *",
            "  try: multiply by a triangular matrix of ones: *",
            "1 kernel for v5e in dumps (1 failed), used by 1 test",
            "next: pallas-debug explain dumps/broken_kernel-*",
        ]
    )


@pytest.mark.slow
def test_a_failing_test_s_traceback_has_no_frames_of_ours(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import jax, jax.numpy as jnp
        from jax.experimental import pallas as pl
        def kernel(x_ref, o_ref):
            raise RuntimeError("mine")
        def call(x):
            return pl.pallas_call(kernel, out_shape=x)(x)
        def test_plain(): call(jnp.ones((8, 128)))
        def test_jitted(): jax.jit(call)(jnp.ones((8, 128)))
        """
    )
    ours, kept = sessions(
        (["--pallas-check", "--tb=native"], {}),
        (["--pallas-check", "--tb=native"], {"PALLAS_TRACEBACK": "1"}),
    )
    for result in (ours, kept):
        result.assert_outcomes(failed=2)
        assert result.stdout.str().count('raise RuntimeError("mine")') >= 2
    assert "/pallas_debug/" not in ours.stdout.str()
    assert "/pallas_debug/bridge/lowering/hook.py" in kept.stdout.str()


@pytest.mark.slow
def test_a_run_without_our_options_is_as_if_we_were_not_there(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import os
        def test_nothing(request):
            names = [name for name, _ in request.config.pluginmanager.list_name_plugin()]
            ours = {"pallas_debug_pytest", "pytest_pallas_debug_pytest"}  # the latter where blocked
            assert {name for name in names if "pallas" in name} <= ours
            assert "LIBTPU_INIT_ARGS" not in os.environ
        def test_wrong(): assert 1 == 2
        """,
        conftest="""
        import atexit, json, pathlib, sys
        def look():
            ours = {name for name in sys.modules if name.startswith("pallas_debug")}
            ours -= {"pallas_debug_pytest", "pallas_debug_pytest.options"}
            found = sorted({"jax", "numpy", "packaging.requirements"} & set(sys.modules) | ours)
            pathlib.Path("modules.json").write_text(json.dumps(found))
        atexit.register(look)
        """,
    )
    with_us = run(pytester)
    assert json.loads((pytester.path / "modules.json").read_text()) == []
    without_us = run(pytester, "-p", "no:pallas_debug_pytest")
    assert "pallas" not in with_us.stdout.str().replace("pallas-debug-0", "")

    def plain(result: pytest.RunResult) -> list[str]:
        # The header lists the plugins, and the last line has the time.
        lines = result.stdout.lines
        return [re.sub(r"in [\d.]+s =+", "", l) for l in lines if not l.startswith("plugins:")]  # noqa: E741

    assert plain(with_us) == plain(without_us)
