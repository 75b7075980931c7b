"""Attention of one new query per sequence over paged keys and values."""

from .api import paged_attention as paged_attention
from .reference import paged_attention_reference as paged_attention_reference
from .specs import SPECS as SPECS
