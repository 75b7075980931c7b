"""`pallas_debug.sweep`."""

from pallas_debug.sweeps.run import sweep as sweep
