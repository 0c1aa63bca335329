"""The public functions. They are thin: commands and functions call the same code."""
