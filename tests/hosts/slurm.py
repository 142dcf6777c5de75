"""Slurm on the hosts of a network: one controller, and a node on each host.

    with network.Network(2) as net, slurm.Cluster(net) as cluster:
        cluster.run(["srun", "-N2", "hostname"])

Everything is in one temporary folder: configuration, keys, sockets, states and logs. Partition
`low` is the default. A job in partition `high` takes its nodes: the jobs there get SIGTERM, some
time, and are queued again.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import mpi
import network

SECONDS_TO_START = 30
NODE_TIMEOUT = 6  # seconds after which a silent node is down
GRACE = 30  # seconds between SIGTERM and the end of a preempted job
REQUEUE = 5  # seconds after which a preempted job may start again

_CONTROLLER_PORT, _NODE_PORT = 6817, 6818

# What `salloc -N1 -n2 -c2 : -N2 -n3` of Slurm 22.05 sets. A batch script has the first group's
# nodes in SLURM_JOB_NODELIST besides.
HETEROGENEOUS = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURM_NTASKS": "5",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2,1",
    "SLURM_CPUS_PER_TASK_HET_GROUP_0": "2",
}

_CONFIGURATION = """
ClusterName=easyddl
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue}
CredType=cred/munge
StateSaveLocation={folder}/state
# A folder of its own for each node: they share the machine's file system.
SlurmdSpoolDir={folder}/%n/spool
TmpFS={folder}/%n/tmp
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
SlurmctldPort={controller_port}
SlurmdPort={node_port}
# The nodes have as many processors as they say, and not as many as the machine has.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdTimeout={node_timeout}
SlurmctldTimeout=30
KillWait=5
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def missing():
    """Why there can be no such cluster here, or `None`."""
    for program in ("munged", "mungekey", "slurmctld", "slurmd", "srun"):
        if _path(program) is None:
            return f"needs {program} (Debian's packages slurm-wlm and munge)"
    return network.missing()


class Cluster(network.SetUp):
    """A Slurm cluster whose controller runs on the first host.

    Args:
        net: `network.Network`, entered. When the cluster ends, it ends all processes of the hosts.
        cpus: Integer. How many processors each node claims to have.

    Attributes:
        folder: Path of the folder of all files.
        submit_host: String. The host on which commands run.
        rsh: String. A program that starts a command on a host without Slurm.
    """

    def __init__(self, net, cpus=4):
        self._net, self._cpus = net, cpus
        self.submit_host, self.rsh = net.hosts[0], net.rsh
        super().__init__()

    def _set_up(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="easyddl-slurm-"))
        self._cleanup.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._configure()
        self._start_munge()
        for host in self._net.hosts:
            self._cleanup.callback(self._net.end_processes, host)
        self._start_controller()
        for host in self._net.hosts:
            self.start_node(host)
        self.wait_until_idle()

    def environment(self, extra=None):
        """The environment of Slurm's commands, and of the jobs that they start."""
        ours = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        # A job's own variables must not reach the daemons, nor another job.
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        env = self._net.environment({"PATH": path, **ours, **(extra or {})})
        return {k: v for k, v in env.items() if k in ours or not k.startswith(("SLURM_", "PMI"))}

    def command(self, command):
        """The command line that runs a command on the host of submissions."""
        return self._net.on(self.submit_host, command)

    def run(self, command, env=None, timeout=60, cwd=None):
        """Runs a command on the host of submissions, as `mpi.run_command` does."""
        cwd = self.folder if cwd is None else cwd
        return mpi.run_command(self.command(command), self.environment(env), timeout, cwd)

    def ask(self, *command):
        """What one of Slurm's commands prints.

        Raises:
            RuntimeError: If it fails.
        """
        done = self.run(command)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: {done.stdout}")
        return done.stdout.strip()

    def jobs(self):
        """The state of each job that is queued or runs, by its number."""
        lines = self.ask("squeue", "-h", "-o", "%A %T").splitlines()
        return {int(line.split()[0]): line.split()[1] for line in lines}

    def node_states(self):
        """The state of each node, by its name."""
        lines = self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_until(self, condition, what, seconds=SECONDS_TO_START):
        """Waits until a function without arguments returns true, and returns what it returned."""
        limit = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > limit:
                raise TimeoutError(f"not within {seconds} s: {what}\n{self.logs()}")
            time.sleep(0.1)
        return found

    def wait_until_idle(self):
        """Waits until no job is left and every node is ready."""
        idle = dict.fromkeys(self._net.hosts, "idle")
        self.wait_until(lambda: not self.jobs() and self.node_states() == idle, "all nodes idle")

    def leftovers(self):
        """The processes on the hosts that are not Slurm's own, as their command lines by host."""
        found = {}
        for host in self._net.hosts:
            for pid in self._net.processes(host):
                command = _command_of(pid)
                if command and not command.startswith(("slurmd", "slurmctld")):
                    found.setdefault(host, []).append(command)
        return found

    def end_node(self, host):
        """Ends all processes of a host that is not the controller's, as if its power were cut."""
        assert host != self.submit_host
        self._net.end_processes(host)

    def start_node(self, host):
        """Starts the daemon of a node."""
        self._start(host, "slurmd", "-D", "-N", host)

    def logs(self):
        """The ends of the daemons' logs."""
        paths = sorted(self.folder.glob("**/*.log"))
        return "\n".join(f"{p.name}:\n{p.read_text(errors='replace')[-3000:]}" for p in paths)

    def _configure(self):
        hosts, addresses = self._net.hosts, self._net.addresses()
        for name in ("state", *(f"{host}/{kind}" for host in hosts for kind in ("spool", "tmp"))):
            (self.folder / name).mkdir(parents=True)
        nodes = [
            f"NodeName={host} NodeHostname={host} NodeAddr={addresses[host]} Port={_NODE_PORT} "
            f"CPUs={self._cpus} State=UNKNOWN"
            for host in hosts
        ]
        text = _CONFIGURATION.format(
            controller=f"{self.submit_host}({addresses[self.submit_host]})",
            folder=self.folder,
            nodes="\n".join(nodes),
            controller_port=_CONTROLLER_PORT,
            node_port=_NODE_PORT,
            node_timeout=NODE_TIMEOUT,
            grace=GRACE,
            requeue=REQUEUE,
        )
        (self.folder / "slurm.conf").write_text(text)
        # Named, because it cannot be detected: a network namespace has a /sys without cgroups.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start_munge(self):
        """Starts the service by which the daemons and commands trust each other."""
        key, socket = self.folder / "munge.key", self.folder / "munge.socket"
        subprocess.run([_path("mungekey"), "-c", "-k", key], check=True)
        # Forced, because it would else insist on folders that belong to the user `munge`.
        process = self._popen(
            [_path("munged"), "-F", "-f", "-S", socket, "--key-file", key,
             "--pid-file", self.folder / "munge.pid", "--seed-file", self.folder / "munge.seed",
             "--log-file", self.folder / "munge.log"],
            "munged.log",
        )  # fmt: skip
        self._cleanup.callback(_stop, process)
        self.wait_until(socket.exists, "munge's socket")

    def _start_controller(self):
        self._start(self.submit_host, "slurmctld", "-D")
        ready = lambda: self._net.listens(self.submit_host, _CONTROLLER_PORT)  # noqa: E731
        self.wait_until(ready, "slurmctld listens")

    def _start(self, host, program, *arguments):
        command = ["exec", _path(program), *arguments]
        log = f"{host}-{program}.log"
        self._cleanup.callback(_stop, self._popen(self._net.on(host, command), log))

    def _popen(self, command, log):
        with open(self.folder / log, "ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )


def _path(program):
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _command_of(pid):
    """The command line of a process; empty if it has ended."""
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    program, *arguments = command.replace(b"\0", b" ").decode(errors="replace").split()[:20] or [""]
    return " ".join([os.path.basename(program), *arguments])


def _stop(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
