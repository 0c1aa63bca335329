"""The public functions: thin, over what the commands call too."""
