"""Communication between chips by remote DMA."""

from .api import all_gather as all_gather
from .api import right_permute as right_permute
from .reference import all_gather_reference as all_gather_reference
from .reference import right_permute_reference as right_permute_reference
from .specs import SPECS as SPECS
