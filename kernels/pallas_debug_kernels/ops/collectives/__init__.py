"""Communication between chips by remote DMA."""

from .api import all_gather as all_gather
from .reference import all_gather_reference as all_gather_reference
from .specs import SPECS as SPECS
