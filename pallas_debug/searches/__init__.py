"""Search for the smallest input for which the kernels of a function fail.

Floor above the verdict, which decides about each input. `numbers.py` evaluates the sizes and ranges
that a user writes, `templates.py` reads `--arg` texts with such variables, `strategies.py` draws
from them with hypothesis, and `search.py` runs the search. An input is a list of plain `--arg`
texts, so that whatever is found can be passed to any other command.
"""
