"""Profile of a kernel: schedule, cycles, memory, block map and timeline. Does not import jax."""
