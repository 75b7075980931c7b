"""jax's interpret modes: choosing one, running it, reporting its findings."""
