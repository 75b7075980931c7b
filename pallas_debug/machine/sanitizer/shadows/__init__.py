"""Shadow memory: who wrote each element, and which reads and writes go wrong."""
