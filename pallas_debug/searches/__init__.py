"""Search for the smallest input for which the kernels of a function fail.

Floor above the verdict, which decides about each input. `templates.py` reads `--arg` texts with
variables and draws from them with hypothesis, and `search.py` runs the search. An input is a list
of plain `--arg` texts, which any other command takes, too.
"""
