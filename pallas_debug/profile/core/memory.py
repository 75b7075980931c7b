"""Model of SMEM during a walk through a schedule: stored words and given tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from pallas_debug.profile.core.given import GivenTable
from pallas_debug.profile.core.scalars import Address, Scalar


class ScalarMemory:
    """Words of SMEM, by allocation and offset.

    Attributes:
      used: names of the given tables that were read.
    """

    def __init__(self, given: Mapping[int, GivenTable]) -> None:
        """Make an empty memory.

        Args:
          given: tables by the bundle that starts the copy to SMEM.
        """
        self.used: set[str] = set()
        self._given = given
        self._words: dict[str, dict[int, Scalar]] = defaultdict(dict)
        self._tables: dict[str, str] = {}  # names, by their allocation

    def load(self, place: Address | None) -> Scalar:
        if place is None:
            return None
        allocation, offset = place
        if allocation in self._tables:
            self.used.add(self._tables[allocation])
        return self._words[allocation].get(offset)

    def store(self, place: Address, value: Scalar) -> None:
        allocation, offset = place
        self._words[allocation][offset] = value

    def copy(self, bundle: int, destination: Scalar) -> None:
        """Invalidate the words that a copy overwrites, or set them if its table is given.

        Args:
          bundle: index of the bundle that starts the copy.
        """
        if not isinstance(destination, tuple):
            return
        allocation, offset = destination
        self._words.pop(allocation, None)
        self._tables.pop(allocation, None)
        table = self._given.get(bundle)
        if table is not None:
            self._tables[allocation] = table.name
            self._words[allocation] = {offset + n: word for n, word in table.words.items()}
