"""Softmax over the last axis, forward and backward."""

from .kernel import softmax as softmax
from .specs import SPECS as SPECS
from .specs import softmax_reference as softmax_reference
