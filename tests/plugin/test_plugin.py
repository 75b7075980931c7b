"""The pytest plugin in real child runs: three ways to set its options, with and without xdist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pallas_debug_pytest.options import OPTIONS
from tiers import with_and_without_xdist

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
            "pallas-debug *: dumping to dumps for v5e, v6e; kernels run on the kernel machine, as there is no accelerator",
            "*- pallas-debug -*",
            "2 kernels for v5e, v6e in dumps*, used by 4 tests",
            "next: pallas-debug ls dumps",
        ]
    )
    assert used(pytester.path / "dumps") == EXPECTED
    assert {record.run for record in open_dumps(pytester.path / "dumps").runs()} != set()
    assert len({record.run for record in open_dumps(pytester.path / "dumps").runs()}) == 1
    for kernel in open_dumps(pytester.path / "dumps").kernels():
        assert [c.target for c in kernel.compilations] == ["v5e", "v6e"]
        assert all(c.compilation and c.compilation.ok for c in kernel.compilations)


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
            "  try: express it with other operations: a cumulative sum as a product with a triangular *",
            "1 kernel for v5e in dumps (1 failed), used by 1 test",
            "next: pallas-debug show dumps/broken_kernel-* error -t v5e",
        ]
    )


@pytest.mark.slow
def test_a_test_that_fails_names_its_kernels(run_pytest: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_kernels="""
        import jax.numpy as jnp
        from jax.experimental import pallas as pl
        from pallas_debug_kernels import vector_add
        def roots_kernel(x_ref, o_ref):
            o_ref[...] = jnp.sqrt(x_ref[...])
        def test_wrong():
            x = vector_add(jnp.ones(1024), jnp.full(1024, -3.0)).reshape(8, 128)
            pl.pallas_call(roots_kernel, out_shape=x)(x)
        """
    )
    result = run_pytest("--pallas-dump", "--pallas-check")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    section = re.search(r"-+ pallas-debug -+\n(.*?)\n-+ pallas-debug", text, re.DOTALL)
    assert section is not None
    lines = section[1].splitlines()
    assert len(lines) <= 15
    assert lines[0] == "2 kernels used by this test:"
    assert lines[1].startswith(
        "  dumps/roots_kernel-"
    )  # the one with the finding before the others
    assert lines[2].startswith("  dumps/vector_add-")
    assert lines[3].startswith("show one: pallas-debug show dumps/roots_kernel-")


@pytest.mark.slow
def test_an_option_may_stand_in_three_places(pytester: pytest.Pytester, sessions: Sessions) -> None:
    ini = pytester.path / "other.ini"
    ini.write_text("[pytest]\npallas_dump = by-ini\npallas_target = v6e\n")
    environment = {"PALLAS_DUMP": "by-environment", "PALLAS_TARGET": "v6e"}
    results = sessions(
        (["--pallas-dump=by-line", "--pallas-target=v6e"], {}),
        ([f"--config-file={ini}"], {}),
        ([], environment),
    )
    for result, place in zip(results, ("by-line", "by-ini", "by-environment"), strict=True):
        result.assert_outcomes(passed=5)
        kernels = open_dumps(pytester.path / place).kernels()
        assert [c.target for k in kernels for c in k.compilations] == ["v6e", "v6e"]


@pytest.mark.slow
def test_the_command_line_beats_the_environment_and_that_the_ini(
    run_pytest: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\npallas_dump = ini\npallas_target = v4\n")
    monkeypatch.setenv("PALLAS_TARGET", "v6e")
    result = run_pytest("--pallas-dump=line", "-k", "matmul")
    result.stdout.fnmatch_lines(["pallas-debug *: dumping to line for v6e;*"])


@pytest.mark.slow
def test_kernels_run_in_the_mode_that_was_asked_for(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makepyfile(
        test_mode="""
        import os
        from jax._src import config
        from jax.experimental.pallas import tpu as pltpu
        def test_mode():
            value = config.pallas_tpu_interpret_mode_context_manager.value
            is_tpu = isinstance(value, pltpu.InterpretParams)
            assert value and is_tpu == (os.environ["MODE"] == "tpu"), value
        """
    )
    hlo, tpu, auto = sessions(
        (["--pallas-interpret=hlo"], {"MODE": "hlo"}),
        (["--pallas-interpret=tpu"], {"MODE": "tpu"}),
        (["-k", "matmul", "--pallas-interpret"], {}),
    )
    for result, header in ((hlo, "HLO"), (tpu, "TPU")):
        result.assert_outcomes(passed=6)
        result.stdout.fnmatch_lines(
            [
                f"pallas-debug *: kernels run in jax's {header} interpret mode",
                "2 kernels used by 4 tests",
            ]
        )
    message = "kernels run on the kernel machine"
    auto.stdout.fnmatch_lines([f"pallas-debug *: {message}"])
    assert not (pytester.path / "dumps").exists()


@pytest.mark.slow
def test_an_exception_in_tpu_interpret_mode_leaves_the_next_test_alone(
    run_pytest: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import jax, jax.numpy as jnp, pytest
        from jax.experimental import pallas as pl
        def beyond(i_ref, x_ref, o_ref):
            o_ref[...] = x_ref[pl.ds(i_ref[0], 8), :]
        def call(start):
            return pl.pallas_call(beyond, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))(
                jnp.array([start]), jnp.ones((16, 128)))
        def test_beyond():
            call(12).block_until_ready()
        def test_within():
            assert call(8)[0, 0] == 1
        """
    )
    run_pytest("--pallas-interpret=tpu").assert_outcomes(failed=1, passed=1)


NO_SENSE: list[tuple[list[str], str]] = [
    (["--pallas-target=v99", "--pallas-dump"], "unknown target 'v99'; the known ones are v4"),
    (["--pallas-target=v5e,,v6e", "--pallas-dump"], "--pallas-target: 'v5e,,v6e' is not a list of targets; write it as v5e,v6e"),
    (["--pallas-interpret=fast"], "--pallas-interpret: 'fast' is not an interpret mode; there "
                                  "are: auto, hlo, tpu, gpu, machine, off"),
    (["--pallas-timeout=soon", "--pallas-dump"], "--pallas-timeout: 'soon' is not a number of seconds greater than 0"),
    (["--pallas-timeout=-1", "--pallas-dump"], "--pallas-timeout: '-1' is not a number of seconds greater than 0"),
    (["--pallas-dump=test_kernels.py"], "--pallas-dump: 'test_kernels.py' is a file; name a directory to dump into"),
    (["--pallas-dump", "nan"], "--pallas-dump took 'nan' as its value, which is also a path. Write --pallas-dump=nan if that is intended, else put --pallas-dump after the tests."),
    (["--pallas-check", "nan"], "--pallas-check took 'nan' as its value, which is also a path."),
    (["--pallas-target=v99"], "unknown target 'v99'; the known ones are v4"),
    (["--pallas-timeout=3"], "--pallas-timeout has no effect by itself; pass --pallas-dump as well"),
    (["--pallas-dump", "-opallas_stages=llo:a b"], "the ini option pallas_stages: 'llo:a b' is not an LLO pass"),
    (["--pallas-dump", "--pallas-switch=magic"], "--pallas-switch: unknown switch 'magic'; there are log_recorder"),
    (["--pallas-dump", "-o", "pallas_hints=perhaps"], "the ini option pallas_hints: 'perhaps' is neither on nor off"),
    (["--pallas-dump=/proc/nowhere"], "pallas-debug: cannot dump to /proc/nowhere"),
]  # fmt: skip


@pytest.mark.slow
def test_stages_of_the_dump_by_line_and_ini(pytester: pytest.Pytester, sessions: Sessions) -> None:
    ini = pytester.path / "other.ini"
    ini.write_text("[pytest]\npallas_dump = by-ini\npallas_stages = bundles\n")
    results = sessions(
        (["--pallas-dump=by-line", "--override-ini=pallas_stages=bundles"], {}),
        ([f"--config-file={ini}"], {}),
    )
    for result, place in zip(results, ("by-line", "by-ini"), strict=True):
        result.assert_outcomes(passed=5)
        kernels = open_dumps(pytester.path / place).kernels()
        made = [c.compilation for k in kernels for c in k.compilations]
        assert [c.stages for c in made if c is not None] == [("bundles",)] * 2


@pytest.mark.slow
def test_what_makes_no_sense_is_refused_before_any_test(sessions: Sessions) -> None:
    Path("nan").mkdir()
    results = sessions(*((arguments, {}) for arguments, _ in NO_SENSE))
    for result, (_, message) in zip(results, NO_SENSE, strict=True):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert message in result.stderr.str()
        assert "Traceback" not in result.stderr.str()


@pytest.mark.slow
def test_a_path_that_an_option_took_as_its_value_is_refused(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.mkdir("some")
    flags = ("--pallas-check", "--pallas-verify", "--pallas-interpret", "--pallas-dump")
    for flag, result in zip(
        flags, sessions(*(([flag, "some"], {}) for flag in flags)), strict=True
    ):
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        message = f"{flag} took 'some' as its value, which is also a path. Write {flag}=some if"
        assert message in result.stderr.str()


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


def test_an_ini_value_that_makes_no_sense_is_named_with_its_place(
    pytester: pytest.Pytester, sessions: Sessions
) -> None:
    pytester.makeini("[pytest]\npallas_interpret = fast\n")
    ini, environment = sessions(([], {}), ([], {"PALLAS_INTERPRET": "slow"}))
    assert "the ini option pallas_interpret: 'fast' is no" in ini.stderr.str()
    message = environment.stderr.str()
    assert "the environment variable PALLAS_INTERPRET: 'slow' is no" in message


def test_help_tells_of_every_option_in_its_three_spellings(run_pytest: Run) -> None:
    text = " ".join(run_pytest("--help").stdout.str().split())
    for option in OPTIONS:
        assert option.flag in text
        assert option.is_setting or f"ini: {option.ini}" in text
        assert option.is_setting or option.environment in text


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
            ours -= {"pallas_debug_pytest.advice"}  # where a test fails
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
        return [re.sub(r"in [\d.]+s", "", l) for l in lines if not l.startswith("plugins:")]  # noqa: E741

    assert plain(with_us) == plain(without_us)


def test_a_run_with_our_options_and_no_kernels_is_silent_at_the_end(
    run_pytest: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_kernels="def test_nothing(): pass")
    result = run_pytest("--pallas-dump")
    assert result.stdout.str().count("pallas-debug") == 2  # the header's line and the plugins'


def test_what_conftest_sets_for_jaxs_backend_is_still_in_time(
    run_pytest: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_kernels="""
        import jax
        jax.config.update("jax_num_cpu_devices", 3)
        def test_devices():
            assert jax.device_count() == 3
        """
    )
    import os

    environment = os.environ.pop("XLA_FLAGS", None)
    try:
        run_pytest("--pallas-dump").assert_outcomes(passed=1)
    finally:
        if environment is not None:
            os.environ["XLA_FLAGS"] = environment


@pytest.mark.slow
@with_and_without_xdist
def test_our_own_failure_fails_no_test_and_is_an_error_at_the_end(
    run_pytest: Run, pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(
        conftest="""
        from pallas_debug.bridge.capture import capture
        def crash(*args):
            raise RuntimeError("a bug of ours")
        capture.capture = crash
        """
    )
    result = run_pytest("--pallas-dump", *workers)
    result.assert_outcomes(passed=5, errors=1)
    assert result.ret == 3
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of this run*",
            "NOT JUDGED: * capture: internal error in pallas-debug while capturing kernel *",
            "ERROR pallas-debug - *",
        ]
    )
