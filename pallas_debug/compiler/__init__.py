"""The TPU compiler in child processes: targets, switches, pool, worker.

Floor 2. Only `worker.py`, which runs in the child, imports `bridge/`; importing this package does
not import jax. libtpu can abort its process, so a crash is a result to report, never the end of the
run.
"""
