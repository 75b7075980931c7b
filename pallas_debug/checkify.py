"""Support for Pallas kernels in `checkify.checkify`, enabled by importing this module.

    import pallas_debug.checkify

    err, out = checkify.checkify(attention, errors=checkify.all_checks)(q, k, v)
    err.throw()

Since jax 0.10.1, `checkify` does not report errors inside a kernel. With this module it reports the
first error in grid order: failed checks, NaNs produced in the kernel, out-of-bounds indices and
divisions by zero, as selected by `errors`. Errors from before the kernel are preserved, and results
are those of the unchecked kernel. A warning names each kernel that cannot be instrumented.
"""

from __future__ import annotations

from pallas_debug.installed import require_jax

require_jax("pallas_debug.checkify")

from pallas_debug.bridge.instrument import checkify_rule  # noqa: E402
from pallas_debug.bridge.instrument.checkify_rule import (  # noqa: E402
    UncheckedKernel as UncheckedKernel,
)
from pallas_debug.bridge.instrument.checkify_rule import install as install  # noqa: E402
from pallas_debug.bridge.instrument.checkify_rule import uninstall as uninstall  # noqa: E402

__all__ = ["UncheckedKernel", "install", "uninstall"]

checkify_rule.install()
