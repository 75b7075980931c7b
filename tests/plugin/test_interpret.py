"""`--pallas-interpret` in real child runs: modes, parameters, and the state after errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Child = Callable[..., pytest.RunResult]
ChildFiles = Callable[[str], None]
Sessions = Callable[..., list[pytest.RunResult]]

IN_MODE = """
import os
from jax._src import config

def test_mode():
    value = config.pallas_tpu_interpret_mode_context_manager.value
    is_tpu = isinstance(value, pltpu.InterpretParams)
    assert bool(value) == (os.environ["MODE"] != "off") and is_tpu == (os.environ["MODE"] == "tpu")

def test_first_rows_are_zero():
    def scratch(x_ref, o_ref, scratch_ref):
        o_ref[...] = scratch_ref[...]
    scratch_shapes = [pltpu.VMEM((8, 128), jnp.float32)]
    assert call(scratch, X, scratch_shapes=scratch_shapes)[0, 0] == 0

def test_chip():
    assert generation(GOOD)[0, 0] == (6 if os.environ.get("PALLAS_TARGET") == "v6e" else 5)
"""

IN_MODES = [
    (["--pallas-interpret=hlo"], {"MODE": "hlo"}, (2, 1)),
    (["--pallas-interpret=hlo"], {"MODE": "hlo", "PALLAS_TARGET": "v6e"}, (2, 1)),
    (["--pallas-interpret=tpu"], {"MODE": "tpu", "PALLAS_TARGET": "v6e"}, (2, 1)),
    (["--pallas-interpret=tpu,uninitialized_memory=zero"], {"MODE": "tpu"}, (3, 0)),
    (["--pallas-interpret=off"], {"MODE": "off"}, (1, 2)),
]
"""Arguments, environment, and how many of the tests pass and fail."""


@pytest.mark.slow
def test_mode_parameters_and_chip_reach_the_interpreter(
    child_files: ChildFiles, sessions: Sessions
) -> None:
    child_files(IN_MODE)
    results = sessions(*((arguments, environment) for arguments, environment, _ in IN_MODES))
    for result, (_, _, (passed, failed)) in zip(results, IN_MODES, strict=True):
        result.assert_outcomes(passed=passed, failed=failed)
    assert "Only interpret mode is supported on CPU backend" in results[-1].stdout.str()


ERRORS = """
def test_beyond():
    rows(12).block_until_ready()

def test_within():
    assert rows(8)[0, 0] == 1

def test_beyond_as_expected():
    with pytest.raises(Exception, match="Out-of-bounds read"):
        rows(12).block_until_ready()

def test_beyond_without_a_look():
    rows(12)

def test_within_again():
    assert rows(8)[0, 0] == 1

def test_refused_by_the_interpreter_as_expected():
    def refused(o_ref):
        def copy(tile_ref):
            o_ref[...] = tile_ref[...]
        pl.run_scoped(copy, pltpu.VMEM((8, 128), jnp.float32), collective_axes="core")
    with pytest.raises(NotImplementedError, match="collective axes"):
        call(refused)
"""


@pytest.mark.slow
def test_an_error_in_a_kernel_leaves_the_next_test_alone(
    child_files: ChildFiles, sessions: Sessions
) -> None:
    child_files(ERRORS)
    modes = ("tpu", "tpu,detect_races,random_seed=2")
    for result in sessions(*(([f"--pallas-interpret={mode}"], {}) for mode in modes)):
        result.assert_outcomes(passed=4, failed=2)
        text = result.stdout.str()
        assert "INTERNALERROR" not in text
        assert text.count("\nIndexError: Out-of-bounds read of ") >= 2
