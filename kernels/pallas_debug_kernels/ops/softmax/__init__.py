"""Softmax over the last axis, forward and backward."""

from .api import softmax as softmax
from .reference import softmax_reference as softmax_reference
from .specs import SPECS as SPECS
