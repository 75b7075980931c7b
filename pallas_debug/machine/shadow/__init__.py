"""Shadow memory: the writer of each element, and faulty reads and writes."""
