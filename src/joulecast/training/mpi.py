"""MPI as this package uses it; where no library can be loaded, an error says how to get one.

All programs that are ranks begin here, so here they are tied to their launcher.
"""

from joulecast.errors import JoulecastError
from joulecast.training.processes import note_begun, tie_to_launcher

tie_to_launcher()
try:
    from mpi4py import MPI as MPI
except (ImportError, RuntimeError) as error:
    raise JoulecastError(
        f"no MPI library can be loaded ({str(error).splitlines()[-1]}); load the site's module, or install "
        "one: `pip install mpich` (`./run` installs it, unless JOULECAST_MPI is `site`)"
    ) from None
note_begun(MPI.COMM_WORLD.rank)
