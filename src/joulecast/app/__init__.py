"""What people touch: configuration, command line, Python API, and exports to other tools.

The input is options, arguments or keys of a request. Another room answers the request. Its answer is the
output.
"""
