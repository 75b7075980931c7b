"""Decoder of kernels into the machine's instruction set."""
