"""What to run: the setting of a training that meets a limit, and what that choice rests on."""
