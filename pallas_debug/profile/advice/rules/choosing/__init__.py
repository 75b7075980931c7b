"""Rules about blocks and rows that are selected by tables in scalar prefetch."""
