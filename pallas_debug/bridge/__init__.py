"""The only room that touches jax's internals.

patches    table of all replacements in jax, and their installation and removal
meaning    comparison of decoded tiny kernels with those of a tested jax
versions   versions of the installed packages, and workarounds that are not patches
chip       emulated chip for code that queries it on a machine without one
pretend    devices that answer as the emulated chip
platform   the backend that programs run on
libtpu     libtpu without jax, for the worker process
"""
