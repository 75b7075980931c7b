"""A kernel as jax lowers it, as data: `Capture`."""
