"""What people touch: configuration, command line, Python API, and exports to other tools."""
