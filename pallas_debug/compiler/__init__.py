"""The TPU compiler in child processes: targets, switches, pool, worker.

Floor 2. Importing this package does not import jax; of its modules, only `job.py` and
`worker.py`, which runs in the child, use `bridge/`. libtpu can abort its process, so a crash is a
result to report and never ends the run.
"""
