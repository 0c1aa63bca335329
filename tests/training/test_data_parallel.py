"""Data-parallel correctness, by programs under a real mpiexec."""

import pytest


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_every_allreduce_sums(mpi, ranks):
    mpi("allreduce_program.py", ranks)


@pytest.mark.parametrize(
    ("network", "algorithm", "overlap", "hosts", "ranks"),
    [
        pytest.param("vit_ti", "mpi", "0", "1", 2, marks=pytest.mark.long),
        pytest.param("vit_ti", "shared", "1", "1", 3, marks=pytest.mark.long),
        pytest.param("vit_ti", "two_level", "1", "2", 3, marks=pytest.mark.long),
        ("squeezenet1_0", "shared", "0", "1", 2),
    ],
)
def test_ranks_together_have_the_gradients_of_one(mpi, network, algorithm, overlap, hosts, ranks):
    mpi("gradients_program.py", ranks, network, algorithm, overlap, hosts)
