"""Element-wise sum of two vectors: the smallest kernel with a grid."""

from .api import vector_add as vector_add
from .reference import vector_add_reference as vector_add_reference
from .specs import SPECS as SPECS
