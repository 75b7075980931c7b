"""A kernel in numbers: schedule, cycles, memory, block map and timeline. Imports no jax."""
