"""Which command starts the ranks: the MPI, the hosts, and the cores of each rank."""
