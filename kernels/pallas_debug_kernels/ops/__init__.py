"""One folder per operation.

Each has `api` (what a user calls), `kernel` (what runs on the core), `reference` (the same in plain
jax.numpy) and `specs` (named argument sets).
"""
