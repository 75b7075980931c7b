"""The kernel machine: a deterministic interpreter of kernels, with shadow memory and stepping.

It runs the programs that `bridge/programs/` decodes, in one process and one thread: simulated
memories per core and device, DMAs, semaphores, a scheduler. It imports no jax. What its observers
check:

bounds     indices, blocks, devices and sizes of copies
order      happens-before, races, semaphores, deadlocks
shadow     the writer of each element, and uses of uninitialised memory
numbers    arithmetic, random bits, loops, hints to the compiler
hints      what looks unintended, although a correct program may do it
sanitizer  these together: areas, further runs, faults that follow from others
debugger   snapshots, replay, and values at any step
"""
