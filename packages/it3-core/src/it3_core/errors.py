"""The one exception that means "what you gave us can't be used, and here is what to do"."""

from __future__ import annotations

__all__ = ["IT3Error", "IT3Warning"]


class IT3Error(ValueError):
    """Something the caller can mend: its message is one sentence that says what to do.

    Command lines print the message and exit with code 2; nothing else is caught.

    Example:
        >>> from it3_core import Regression
        >>> Regression(mean=0.0, std=0.0)
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: std must be positive and finite, but is [0.0]
    """


class IT3Warning(UserWarning):
    """The answer is valid, but probably not what the caller hoped for.

    Example:
        >>> import warnings
        >>> from it3_core import IT3Warning
        >>> warnings.simplefilter("error", IT3Warning)  # treat them as errors
        >>> warnings.resetwarnings()
    """
