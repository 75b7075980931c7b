"""Correct kernels equal their references on the machine, and nothing that counts is found in them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from machine_runs import ran

import pallas_debug
from correct_kernels import CORRECT, CorrectKernel

each = pytest.mark.parametrize("kernel", CORRECT, ids=lambda kernel: kernel.name)
pytestmark = pytest.mark.usefixtures("quick_to_compile")


@each
def test_equals_its_reference(kernel: CorrectKernel) -> None:
    found = jax.tree.leaves(ran(kernel.function, *kernel.args))
    wanted = jax.tree.leaves(kernel.reference(*kernel.args))
    assert len(found) == len(wanted)
    for a, b in zip(map(np.asarray, found), map(np.asarray, wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        close = 1e-2 if a.dtype == jax.numpy.bfloat16 else 1e-5
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=close, atol=close)


@each
def test_nothing_is_found(kernel: CorrectKernel) -> None:
    verdict = pallas_debug.verify(
        kernel.function,
        *kernel.args,
        targets="v5e",
        engines="static,machine",
        reference=kernel.reference,
    )
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)
    judged = {outcome.engine: outcome.status for outcome in verdict.outcomes}
    assert (judged["machine"], judged["values"]) == ("ok", "ok"), str(verdict)
