"""A verdict as text (`text.py`), in a notebook, for code scanning, and for a workflow's log.

Floor 3. Renders what a `Verdict` says; no engine, no jax.
"""
