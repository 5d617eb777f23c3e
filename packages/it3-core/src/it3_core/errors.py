"""The one exception that means "what you gave us can't be used, and here is what to do"."""


class IT3Error(ValueError):
    """Something the caller can mend: its message is one sentence that says what to do.

    Command lines print the message and exit with code 2; nothing else is caught.
    """


class IT3Warning(UserWarning):
    """The answer is valid, but probably not what the caller hoped for."""
