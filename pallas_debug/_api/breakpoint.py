"""`pallas_debug.breakpoint`: a breakpoint for the debugger, set in a kernel."""

from pallas_debug.bridge.jaxprs import marker


def breakpoint() -> None:
    """Stop the debugger at this call, if it runs the kernel.

        def kernel(x_ref, o_ref):
            total = jnp.sum(x_ref[...])
            pallas_debug.breakpoint()
            o_ref[...] = x_ref[...] / total

    `pallas_debug.step` stops whenever it reaches this line. Interpreters, the TPU compiler and
    everything else ignore it, so it may stay in a kernel. Outside a kernel it is a no-op.
    """
    marker.mark()
