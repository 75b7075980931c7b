"""`python -m pallas_debug`: the same as the command `pallas-debug`."""

from __future__ import annotations

from pallas_debug.cli import console

if __name__ == "__main__":
    console()
