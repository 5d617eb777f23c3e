"""What a whole experiment needs besides the method: command lines, splits, tables, pages.

Imports nothing, so that a command's `--help` loads neither torch nor pandas. Its libraries come
with the extra `it3-core[experiment]`.
"""
