"""Operations, one folder each.

Each has `api` (public functions), `kernel` (the Pallas kernel), `reference` (the same in plain
jax.numpy) and `specs` (named argument sets).
"""
