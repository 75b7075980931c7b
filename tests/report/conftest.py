"""The fixtures of `pages.py`, for these tests."""

from pages import browser, driver, dumps, write

__all__ = ["browser", "driver", "dumps", "write"]
