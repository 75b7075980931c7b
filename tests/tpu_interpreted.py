"""Calls in TPU interpret mode, with the findings of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.interpret import tpu_interpret
from pallas_debug.model import Finding
from pallas_debug.render import finding_text

F32 = jnp.float32
X = jnp.ones((16, 128), F32)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
FIRST = pl.BlockSpec((8, 128), lambda i: (0, 0))
WHOLE = pl.BlockSpec((16, 128), lambda i: (0, 0))
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR
PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))


HANG_AFTER = 1.0
PLAIN = pltpu.InterpretParams()
EAGER = pltpu.InterpretParams(dma_execution_mode="eager")
RACES = pltpu.InterpretParams(detect_races=True, vector_clock_size=1024)
TWO_CORES = pltpu.InterpretParams(detect_races=True, num_cores_or_threads=2, vector_clock_size=1024)


class Seen:
    """The findings of one call, the races noticed without race detection, and what it raised."""

    def __init__(
        self,
        call: Callable[[], Any],
        params: pltpu.InterpretParams = PLAIN,
        hang_after: float | None = HANG_AFTER,
        stop_after: float | None = None,
    ) -> None:
        self.findings: list[Finding] = []
        self.races: list[Finding] = []
        self.copying: list[tuple[str, str]] = []
        self.error: Exception | None = None
        with tpu_interpret.reporting(
            self.findings.append, hang_after=hang_after, copies=self, stop_after=stop_after
        ):
            try:
                with pltpu.force_tpu_interpret_mode(params):
                    self.result = jax.block_until_ready(call())
            except Exception as error:  # noqa: BLE001 - the tests look at it
                self.error = error

    def suspected(self, finding: Finding) -> None:
        self.races.append(finding)

    def copied(self, kernel: str, mode: str) -> None:
        self.copying.append((kernel, mode))

    @property
    def only(self) -> Finding:
        assert len(self.findings) == 1, (self.findings, self.error)
        return self.findings[0]

    @property
    def text(self) -> list[str]:
        """Lines of the only finding, with this file's name alone."""
        text = finding_text(self.only)
        return re.sub(r"\S*/(\w+\.py):\d+ ", r"\1 ", text).splitlines()


def launch(kernel: Callable[..., None], **options: Any) -> Callable[..., Any]:
    """Called, it calls the kernel: jax reads the interpret mode when `pallas_call` is called."""
    options.setdefault("out_shape", X)
    return lambda *args: pl.pallas_call(kernel, **options)(*args)
