"""The only room that touches jax's internals, behind names of our own.

Floor 2. Each file is for one of jax's doings: `hook` sees kernels as they are lowered, `capture`
describes one, `lower` turns it into a TPU module, `chip` answers for a chip that is not there,
`interpret` chooses who runs a kernel, `compiler` drives libtpu (in the worker process alone),
`selftest` compares all that with the installed jax. `versions` says which jax needs which shim.
"""
