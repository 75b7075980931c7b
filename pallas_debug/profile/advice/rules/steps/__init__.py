"""Rules about work that some grid steps repeat, or do in vain."""
