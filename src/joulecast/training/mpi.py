"""MPI as this package uses it; where no library can be loaded, an error says how to get one."""

from joulecast.errors import JoulecastError

try:
    from mpi4py import MPI as MPI
except (ImportError, RuntimeError) as error:
    raise JoulecastError(
        f"no MPI library can be loaded ({str(error).splitlines()[-1]}); load the site's module, or install "
        "one: `pip install mpich` (`./run` installs it, unless JOULECAST_MPI is `site`)"
    ) from None
