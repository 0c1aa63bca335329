"""MPI, with an error that says how to get a library where none can be loaded.

All ranks import this module first, so it ties them to their launcher.
"""

from joulecast.errors import JoulecastError
from joulecast.measure.training.ranks import tie_to_launcher

tie_to_launcher()
try:
    from mpi4py import MPI as MPI
except (ImportError, RuntimeError) as error:
    raise JoulecastError(
        f"no MPI library can be loaded ({str(error).splitlines()[-1]}); load the site's module, or install "
        "one: `pip install mpich` (`./run` installs it, unless JOULECAST_MPI is `site`)"
    ) from None
