"""Panes of the main screen, one file each, and modal screens on top of them."""
