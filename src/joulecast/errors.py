"""The one family of errors that is meant for the person at the keyboard.

A :class:`JoulecastError` says what is wrong, where (file, key or run) and what to do about it. The
command line prints it as one line and exits with 2; anything else that escapes is a bug and keeps
its traceback.
"""


class JoulecastError(Exception):
    """One message that says what is wrong, where, and how to correct it."""
