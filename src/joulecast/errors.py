"""The errors whose messages are meant for users.

A :class:`JoulecastError` says what is wrong, where (file, key or run) and what to do about it. The command
line prints it as one line and exits with 2. Any other error is a bug, and is shown with its traceback.
"""


class JoulecastError(Exception):
    """One message that says what is wrong, where, and how to correct it."""
