"""The kernel's information on this host: CPUs and GPUs, limits of the cgroup, processes."""
