"""`pallas_debug.verify`: a single verdict on the kernels that a function calls."""

from pallas_debug.verdict.run import verify as verify
