"""A jax in which something is missing: what does not need it works, and doctor names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BREAKS = {
    "a renamed primitive": (
        "from jax._src.pallas import primitives as broken\n"
        "broken.delayed_p = broken.delay_p\ndel broken.delay_p",
        "jax._src.pallas.primitives.delay_p",
    ),
    "a primitive of the SparseCore": (
        "from jax._src.pallas.mosaic import sc_primitives as broken\ndel broken.gather_p",
        "jax._src.pallas.mosaic.sc_primitives.gather_p",
    ),
    "a private function": (
        "from jax._src import util as broken\ndel broken.fun_name",
        "jax._src.util.fun_name",
    ),
}
"""Code that breaks jax, and the name that is then missing."""

WORKS = """
import sys
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
import jax._src.pallas.mosaic.sc_lowering, jax._src.pallas.triton.lowering  # whole, as jax needs
import jax._src.pallas.mosaic_gpu.lowering
{break_}
import pallas_debug

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def double(x):
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows)(x)

x = jnp.ones((16, 128))
(dumped,) = pallas_debug.dump(double, x, to=sys.argv[1])
assert all(compilation.ok for compilation in dumped.compilations)
assert pallas_debug.verify(double, x, engines="static,machine").ok
with pallas_debug.interpret("machine"):
    assert float(double(x).sum()) == 2 * x.size
from pallas_debug._api import doctor
checks = {{check.name: check for check in doctor.examine()}}
assert checks["private names"].state == "warning", checks["private names"]
print(checks["private names"].detail)
"""


@pytest.mark.slow
@pytest.mark.parametrize("break_", BREAKS)
def test_the_rest_works(break_: str, tmp_path: Path) -> None:
    code, missing = BREAKS[break_]
    done = subprocess.run(
        [sys.executable, "-c", WORKS.format(break_=code), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"missing in this jax: {missing}" in done.stdout
