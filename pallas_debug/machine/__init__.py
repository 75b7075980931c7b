"""The kernel machine: a deterministic interpreter of kernels, with shadow memory and stepping.

It runs the programs that `bridge/programs/` decodes, in one process and one thread: simulated
memories per core and device, DMAs, semaphores, a scheduler, recordings. It imports no jax.
"""
