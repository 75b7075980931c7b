"""The hook on the primitive's lowering, tracing, and lowering for a target."""
