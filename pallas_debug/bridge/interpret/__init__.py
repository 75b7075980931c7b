"""Pallas's interpret modes: which one can run a kernel, running it, what TPU mode finds."""
