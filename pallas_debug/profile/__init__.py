"""A kernel in numbers: schedule, cycles, memory, traffic, block map and timeline. Imports no jax."""
