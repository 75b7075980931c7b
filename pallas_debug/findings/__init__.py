"""Fault kinds and the messages about them."""
