"""What people touch: configuration, command line, Python API, and exports to other tools.

In: options, arguments or keys of a request. Out: what the room that answers it returned.
"""
