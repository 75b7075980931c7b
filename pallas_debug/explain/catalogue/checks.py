"""Errors from checks, prints and interpret modes."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import JAX, entry

ENTRIES = (
    entry(
        "check-not-supported",
        "Non-debug checks are not supported by the Mosaic backend",
        "Cannot abstractly evaluate a checkify.check which was not functionalized",
        title="checkify.check in a kernel",
        cause="since jax 0.10.1, checkify ignores kernels and reports none of their errors",
        advice="use pl.debug_check, and call the function through pallas_debug.check or "
        "pallas_debug.checkify, which evaluate it",
        versions="jax 0.10.1 and later",
        kinds=("UnsupportedCheck",),
    ),
    entry(
        "print-arguments",
        "All inputs to debug_print must be all scalars or a single vector",
        "Only one vector input to debug_print is supported",
        "For vector input, the format string must end with {}",
        "All arguments must be 32-bit integers when using placeholders",
        "All arguments must be 32-bit integers or floats when using",
        "Ordered debug_print is not supported on Pallas",
        "Only positional arguments are supported by debug_print on Pallas",
        title="a print that a TPU does not support",
        cause="on a TPU, the log recorder formats prints: scalars with {}, or one array after a "
        "text that ends in {}",
        advice="print each array in a separate pl.debug_print; do not pass ordered or keyword "
        "arguments; under pallas_debug.interpret, any print works",
        versions="floats with {} since jax 0.12",
        kinds=("PrintNotSupported",),
        links=(JAX + "25192",),
    ),
    entry(
        "only-interpret",
        "Only interpret mode is supported on CPU backend",
        "Cannot lower pallas_call on platform:",
        title="a TPU kernel is called on a machine without a TPU",
        cause="a CPU runs kernels only in interpret mode",
        advice="run it under pallas_debug.interpret or pltpu.force_tpu_interpret_mode(), or in "
        "pytest with --pallas-interpret; or compile it here with `pallas-debug dump`. A call that "
        'a module makes when it is imported belongs below `if __name__ == "__main__":`',
        links=(JAX + "20908",),
    ),
    entry(
        "interpreter-random",
        "MLIR translation rule for primitive 'prng_",
        title="HLO interpret mode lacks the TPU's random number generator",
        cause="pltpu.prng_seed and prng_random_bits exist on TPUs and in TPU interpret mode",
        advice="use TPU interpret mode (pltpu.InterpretParams()), or pass random numbers in",
    ),
    entry(
        "interpreter-limits",
        "run_scoped_p with collective axes is not supported",
        "Non-decrementing wait is not supported",
        title="jax's TPU interpret mode cannot run this kernel",
        cause="jax's interpreter raised the error; a TPU may still run the kernel",
        advice="run this kernel on the kernel machine (pallas_debug.interpret, "
        "--pallas-interpret), or on a TPU",
    ),
    entry(
        "too-slow",
        title="the kernel takes longer than a run may take",
        cause="the kernel machine runs grid points and steps one by one",
        advice="use smaller arguments with the same blocks, or allow more time: "
        "--pallas-stop-after, --stop-after",
        kinds=("InterpretError",),
    ),
)
