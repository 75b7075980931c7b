"""Attention of one new query per sequence over paged keys and values."""

from .kernel import paged_attention as paged_attention
from .specs import SPECS as SPECS
from .specs import paged_attention_reference as paged_attention_reference
