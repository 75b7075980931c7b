"""`pallas_debug.breakpoint`: a stop for the debugger, in a kernel."""

from pallas_debug.bridge.jaxprs import marker


def breakpoint() -> None:
    """Stop the debugger here, when it runs a kernel that calls this.

        def kernel(x_ref, o_ref):
            total = jnp.sum(x_ref[...])
            pallas_debug.breakpoint()
            o_ref[...] = x_ref[...] / total

    `pallas_debug.step` stops at this line whenever it comes to it. Interpreters, the compiler for
    TPUs and everything else ignore it; it may stay in a kernel. Outside a kernel it does nothing.
    """
    marker.mark()
