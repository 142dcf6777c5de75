"""The user's request to `easyddl run`."""

import dataclasses
import os

from easyddl.hosts.host_list import HostSlots


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a job.

    Attributes:
        program: List of strings. The program and its arguments.
        np: Positive integer. The number of ranks; `None` to derive it from the hosts.
        hosts: List of `HostSlots`; `None` for the hosts of the allocation, or this host.
        source: String. Where the user wrote the hosts, for messages.
        output: String. The directory for one file a rank; `None` for the screen.
        prefix: Boolean. Whether each line on the screen begins with the rank.
        environment: Dictionary. Variables to set on every rank.
        nic: String. Names of network interfaces, separated by commas; empty for any.
        tcp: Boolean. Whether to use plain TCP between hosts, whatever the network has.
        launcher: String. `auto`, `hydra`, `openmpi` or `srun`.
        rsh: String. A program in place of ssh; empty for the MPI's choice.
        mpi_args: List of strings. Further arguments of the launcher.
        start_timeout: Float. Seconds until all ranks have started.
        grace: Float. Seconds between the signal that ends a rank and its kill.
        host_timeout: Float. Seconds after which a host that does not answer is lost.
        verbose: Boolean. Whether to print the CPUs that each rank is bound to.
        cpus: Set of integers. The CPUs of this host that the job may use; `None` for all that
            this process may use.
        directory: String. The directory in which the program runs.
    """

    program: list[str]
    np: int | None = None
    hosts: list[HostSlots] | None = None
    source: str = "-H"
    output: str | None = None
    prefix: bool = True
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    nic: str = ""
    tcp: bool = False
    launcher: str = "auto"
    rsh: str = ""
    mpi_args: list[str] = dataclasses.field(default_factory=list)
    start_timeout: float = 45.0
    grace: float = 5.0
    host_timeout: float = 20.0
    verbose: bool = False
    cpus: frozenset[int] | None = None
    directory: str = dataclasses.field(default_factory=os.getcwd)
