"""The hook on the lowering of kernels, tracing, and lowering for a target."""
