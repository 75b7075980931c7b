"""Rules about waits for copies that the kernel itself starts."""
