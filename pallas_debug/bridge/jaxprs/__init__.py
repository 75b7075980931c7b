"""Jaxprs: source lines of equations, rewriting, arrays in pytrees."""
