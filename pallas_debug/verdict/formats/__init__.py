"""Output formats of a verdict: text (`text.py`), notebooks, code scanning, workflow logs.

Floor 3. Renders a `Verdict` without engines or jax.
"""
