"""The only room that touches jax's internals.

patches    what is replaced in jax, one row each, and the mechanism that installs and restores it
selftest   compares what is replaced and used with the installed jax
versions   versions of the installed packages, and workarounds that are not patches
chip       a chip for code that asks for one where there is none
platform   which backend programs run on
libtpu     libtpu without jax, for the worker process
internals  what scripts that we write contain of jax's internals
"""
