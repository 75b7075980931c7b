"""Description of a kernel as jax lowers it: `Capture`."""
