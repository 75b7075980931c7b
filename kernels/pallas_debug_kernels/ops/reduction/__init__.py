"""Sum or maximum of a matrix over one axis."""

from .api import reduction as reduction
from .reference import reduction_reference as reduction_reference
from .specs import SPECS as SPECS
