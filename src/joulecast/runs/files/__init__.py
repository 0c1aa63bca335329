"""Files. What comes from outside is read once and checked. What is written is whole or absent."""
