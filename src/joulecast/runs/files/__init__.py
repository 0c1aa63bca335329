"""Files: what comes from outside is read once and checked; what is written is whole or absent."""
