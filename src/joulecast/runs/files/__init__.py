"""Reading and writing of files. A file from outside is read once, and checked. A written file is whole or
absent."""
