"""Rules about blocks and rows that tables in scalar prefetch choose."""
