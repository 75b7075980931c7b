"""Output formats of a verdict: text (`text.py`), and code scanning (`sarif.py`).

Floor 3. Renders a `Verdict` without engines or jax.
"""
