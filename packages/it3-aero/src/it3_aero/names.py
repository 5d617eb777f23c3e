"""Names from elsewhere, made fit to be shown."""

from __future__ import annotations

import os

__all__ = ["shown"]


def shown(text: str | os.PathLike[str]) -> str:
    """A name or path fit for one line: quotes and control characters are escaped, and it is short.

    Example:
        >>> shown("wing.dat"), shown("a\\nQUIT.dat")
        ('wing.dat', "'a\\\\nQUIT.dat'")
    """
    name = os.fspath(text)
    if len(name) > 200:
        name = f"{name[:100]}…{name[-90:]}"
    if not name.strip() or not name.isprintable() or any(quote in name for quote in "'\""):
        return repr(name)
    return name
