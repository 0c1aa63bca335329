"""Energy and time models, and how they are judged. Knows run records; no torch and no MPI."""
