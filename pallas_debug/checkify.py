"""Importing this makes `checkify.checkify` see into Pallas kernels.

    import pallas_debug.checkify

    err, out = checkify.checkify(attention, errors=checkify.all_checks)(q, k, v)
    err.throw()

Since jax 0.10.1 `checkify` reports no error in a kernel, whatever happens there. With this it
reports the first one in grid order: failed checks, NaNs made in the kernel, indices out of bounds
and divisions by zero, as the set `errors` says. Errors from before the kernel are kept, and results
are those of the unchecked kernel. A kernel that it cannot look into is named by a warning.
"""

from __future__ import annotations

from pallas_debug.bridge.instrument import checkify_rule
from pallas_debug.bridge.instrument.checkify_rule import UncheckedKernel as UncheckedKernel
from pallas_debug.bridge.instrument.checkify_rule import install as install
from pallas_debug.bridge.instrument.checkify_rule import uninstall as uninstall

__all__ = ["UncheckedKernel", "install", "uninstall"]

checkify_rule.install()
