"""The terminal UI over dumps, `pallas-debug browse`.

Floor 4. The only room that imports textual; everything it shows is read by `store/` and `ir/`.
"""
