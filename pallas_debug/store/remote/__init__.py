"""Dump directories in object stores, through fsspec: paths, requests, errors, reader, writer."""
