"""Jaxprs: source lines, rewriting, arrays in pytrees."""
