"""Compiler text: locations, the names of passes. Floor 1: reads text, imports no jax."""
