"""Wording of each fault: facts in, a finding with message, cause and advice out.

One function per fault, called by every engine that detects it, with the facts it has. A cause is
given only if the facts show it; otherwise the fault's general explanation is used.
"""
