"""Compiler text: operations, locations, normal form, diff, search."""
