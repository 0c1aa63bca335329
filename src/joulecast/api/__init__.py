"""The public functions, as :mod:`joulecast` has them: thin, over what the commands call too."""
