"""Reactions of jax's interpreters to each broken kernel, and correctness of its repaired twin."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broken_kernels import ALL, BrokenKernel, JaxEngine, Reaction
from evidence import Evidence
from tiers import mark_all_but_first
from zygote import Zygote

MODES = (JaxEngine.HLO, JaxEngine.TPU, JaxEngine.TPU_RACES)
HANGING = [
    (kernel, engine)
    for kernel in ALL
    for engine in MODES
    if kernel.expectation(engine).reaction is Reaction.HANGS
]
TWO_CORES = ("grid", "dma", "semaphores", "order", "remote")
"""Topics in which a second core or the race detector may see something. The others say the same as
in plain TPU interpret mode: that was measured, and is not measured again in every run, for time."""

SECONDS = 2.0
"""What takes longer is said to hang; each of these kernels takes less than one."""

TOGETHER = 6
"""Kernels that hang at a time: an endless loop takes a core from the start of the others."""


@cache
def reference(kernel: BrokenKernel) -> np.ndarray:
    return np.asarray(kernel.reference(*kernel.make_args()))


def is_right(kernel: BrokenKernel, actual: np.ndarray) -> bool:
    wanted = reference(kernel)
    assert actual.shape == wanted.shape
    assert actual.dtype == wanted.dtype
    is_exact = np.issubdtype(wanted.dtype, np.integer)
    tolerance = 0 if is_exact else 1e-5 if wanted.dtype == np.float32 else 1e-2
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    assert np.isfinite(wanted).all()
    return bool((abs(actual - wanted) <= tolerance * abs(wanted).max()).all())


def is_asked(kernel: BrokenKernel, engine: JaxEngine) -> bool:
    return engine is not JaxEngine.TPU_RACES or kernel.topic in TWO_CORES


def can_run(kernel: BrokenKernel, engine: JaxEngine) -> bool:
    """HLO interpret mode has no signals and copies between devices named by their axis."""
    return kernel.topic != "remote" or engine is not JaxEngine.HLO


def cases() -> list[Any]:
    unasked = (Reaction.NOT_APPLICABLE, Reaction.HANGS)
    asked = [
        pytest.param(kernel, engine, id=f"{kernel.name}-{engine}")
        for kernel in ALL
        for engine in MODES
        if kernel.expectation(engine).reaction not in unasked and is_asked(kernel, engine)
    ]
    return mark_all_but_first(
        asked,
        lambda kernel, engine: (
            engine,
            kernel.expectation(engine).reaction,
            kernel.topic in TWO_CORES,
        ),
    )


@pytest.mark.parametrize("kernel, engine", cases())
def test_broken(evidence: Evidence, kernel: BrokenKernel, engine: JaxEngine) -> None:
    expected, ran = kernel.expectation(engine), evidence.native(kernel, engine)
    if expected.reaction is Reaction.RAISES:
        assert ran.error is not None
        assert expected.message in ran.error
        return
    assert ran.error is None
    assert ran.value is not None
    if ran.printed:
        assert expected.reaction is Reaction.PRINTS, ran.printed
        assert expected.message in ran.printed
    elif is_right(kernel, ran.value):
        assert expected.reaction is Reaction.PASSES
    elif np.isnan(ran.value).any():
        assert expected.reaction is Reaction.NAN
    else:
        assert expected.reaction is Reaction.WRONG


@pytest.mark.parametrize(
    "kernel, engine",
    mark_all_but_first(
        [
            pytest.param(kernel, engine, id=f"{kernel.name}-{engine}")
            for kernel in ALL
            for engine in MODES
            if is_asked(kernel, engine) and can_run(kernel, engine)
        ],
        lambda kernel, engine: kernel.topic if engine is JaxEngine.HLO else engine,
    ),
)
def test_repaired(evidence: Evidence, kernel: BrokenKernel, engine: JaxEngine) -> None:
    ran = evidence.native(kernel, engine, repaired=True)
    assert (ran.error, ran.printed) == (None, "")
    assert ran.value is not None
    assert is_right(kernel, ran.value)


_CHILD = """
import sys
import jax
from jax.experimental.pallas import tpu as pltpu
from broken_kernels import broken

jax.config.update("jax_disable_most_optimizations", True)
kernel, engine = broken(sys.argv[1]), sys.argv[2]
races = dict(detect_races=True, num_cores_or_threads=2, vector_clock_size=1024)
races = races if engine == "tpu_races" else {}
with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(**races)):
    jax.block_until_ready(kernel.repaired(*kernel.make_args()))
    print("repaired", flush=True)
    jax.block_until_ready(kernel.function(*kernel.make_args()))
    print("broken", flush=True)
"""


@contextlib.contextmanager
def children(
    python: list[str], hanging: list[tuple[BrokenKernel, JaxEngine]]
) -> Iterator[dict[tuple[str, JaxEngine], subprocess.Popen[str]]]:
    started = {}
    try:
        for kernel, engine in hanging:
            started[kernel.name, engine] = subprocess.Popen(
                [*python, "-c", _CHILD, kernel.name, engine],
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        yield started
    finally:
        for child in started.values():
            child.kill()
            child.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(HANGING), TOGETHER))
def test_hanging(first: int, zygote: Zygote) -> None:
    """The repaired twin ends, and the broken kernel of the same process does not."""
    with children(zygote.python, HANGING[first : first + TOGETHER]) as started:
        for name, child in started.items():
            assert child.stdout is not None
            assert child.stdout.readline() == "repaired\n", name
        time.sleep(SECONDS)
        ended = [name for name, child in started.items() if child.poll() is not None]
    assert ended == []


def test_some_kernels_hang() -> None:
    assert HANGING
