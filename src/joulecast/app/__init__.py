"""What people touch: configuration, command line, Python API, and exports to other tools.

The input is options, arguments or keys of a request. The output is what the room that answers it returned.
"""
