"""Several hosts on one machine: network namespaces joined by switches, with a speed of their own.

Each host has a name, an address and a network device `eth0` of its own, and sees the others
through them alone. The hosts of a rack share a switch; one more joins the racks. Switches are
bridges in a namespace of their own, so that nothing of the machine's own network is touched.
"""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

import mpi

_LISTEN = "0A"  # the state of a socket in /proc/net/tcp
_WIRE = str(pathlib.Path(__file__).with_name("slow_wire.py"))


def missing():
    """Why there can be no such hosts here, or `None`."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"needs {tool} (Debian's package iproute2 or util-linux)"
    probe = f"easyddl-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"cannot make a network namespace: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


_numbers = itertools.count()  # of the networks that this process makes


class SetUp:
    """What `_set_up` makes for a `with`, and `_cleanup` ends after it or after an error."""

    def __init__(self):
        self._cleanup = contextlib.ExitStack()

    def __enter__(self):
        try:
            self._set_up()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *error):
        self._cleanup.close()


class Network(SetUp):
    """Hosts h1, h2, ... joined by switches.

    Args:
        hosts: Integer. How many.
        mbit: Integer, or a list of one for each host. The speed of each host's connection, in each
            direction; `None` for as fast as the machine is.
        racks: String. The name of each host's rack, as EASYDDL_RACKS has them, such as `x` or
            `aisle/x`; `core` for the switch that joins them. All stand in one where it is left out.
        uplink: Integer, or a list of one for each level of groups, the outermost first. The speed
            of the link between a group and the others, in each direction; `None` for as fast as the
            machine is.
        delayed: Boolean. Whether what leaves a group takes 20 ms.
    """

    def __init__(self, hosts, mbit=None, racks=None, uplink=None, delayed=False):
        self._prefix = f"easyddl-{os.getpid()}-{next(_numbers)}"
        self.hosts = [f"h{i + 1}" for i in range(hosts)]
        self._racks = racks.split(",") if racks else ["one"] * hosts
        self._mbit = mbit if isinstance(mbit, list) else [mbit] * hosts
        self._uplink, self._delayed = uplink, delayed
        super().__init__()

    def _set_up(self):
        self._make_switches()
        for number, host in enumerate(self.hosts, 1):
            self._make_host(number, host)
        self._make_rsh()

    def _namespace(self, host):
        return f"{self._prefix}-{host}"

    def _make_namespace(self, name):
        _run("ip", "netns", "add", name)
        self._cleanup.callback(_run, "ip", "netns", "del", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _make_switches(self):
        namespace = self._namespace("switch")
        self._make_namespace(namespace)
        groups = self._groups()
        for bridge in [_switch_of("core"), *map(_switch_of, groups)]:
            _run("ip", "-n", namespace, "link", "add", bridge, "type", "bridge")
            _run("ip", "-n", namespace, "link", "set", bridge, "up")
        for group in groups:
            up, down, outer = _uplink_of(group), _downlink_of(group), group.rpartition("/")[0]
            self._join(namespace, up, down)
            _run("ip", "-n", namespace, "link", "set", up, "master", _switch_of(group), "up")
            _run("ip", "-n", namespace, "link", "set", down, "master",
                 _switch_of(outer or "core"), "up")  # fmt: skip
            limit = self._uplink
            if isinstance(limit, list):
                limit = limit[group.count("/")]
            if limit is not None:
                self._limit(namespace, up, limit)
                self._limit(namespace, down, limit)

    def _join(self, namespace, up, down):
        def add(device, other):
            _run("ip", "-n", namespace, "link", "add", device, "type", "veth",
                 "peer", "name", other)  # fmt: skip

        if not self._delayed:
            add(up, down)
            return
        ends = [f"{device}-end" for device in (up, down)]
        for device, end in zip((up, down), ends, strict=True):
            add(device, end)
            _run("ip", "-n", namespace, "link", "set", end, "up")
        self._cleanup.enter_context(slow_wire(namespace, *ends, "delay"))
        self._cleanup.enter_context(slow_wire(namespace, *reversed(ends), "none"))

    def _groups(self):
        """The groups of hosts, such as `aisle` and `aisle/x`, the outer ones first."""
        found = set()
        for rack in self._racks:
            parts = [] if rack == "core" else rack.split("/")
            found |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
        return sorted(found)

    def _make_host(self, number, host):
        switch, namespace, port = self._namespace("switch"), self._namespace(host), f"port{number}"
        self._make_namespace(namespace)
        _run("ip", "-n", namespace, "link", "add", "eth0", "type", "veth",
             "peer", "name", port, "netns", switch)  # fmt: skip
        _run("ip", "-n", namespace, "address", "add", f"{_address(number)}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        rack = _switch_of(self._racks[number - 1])
        _run("ip", "-n", switch, "link", "set", port, "master", rack, "up")
        mbit = self._mbit[number - 1]
        if mbit is not None:
            self._limit(namespace, "eth0", mbit)  # what leaves the host
            self._limit(switch, port, mbit)  # what comes to it
        self._write_names(namespace)

    def _limit(self, namespace, device, mbit):
        _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf",
             "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")  # fmt: skip

    def _write_names(self, namespace):
        # `ip netns exec` shows a namespace's processes these files in place of the machine's.
        folder = pathlib.Path("/etc/netns", namespace)
        folder.mkdir(parents=True)
        self._cleanup.callback(shutil.rmtree, folder)
        lines = [f"{_address(i)} {host}" for i, host in enumerate(self.hosts, 1)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def _make_rsh(self):
        """A program that starts a command on a host, as rsh does."""
        folder = pathlib.Path(tempfile.mkdtemp())
        self._cleanup.callback(shutil.rmtree, folder)
        self._rsh = folder / "rsh"
        self._rsh.write_text(
            "#!/bin/sh\n"
            "host=$1; shift\n"
            f'exec ip netns exec "{self._prefix}-$host" '
            'unshare --uts sh -c \'hostname "$0"; eval "$@"\' "$host" "$@"\n'
        )
        self._rsh.chmod(self._rsh.stat().st_mode | stat.S_IXUSR)

    @property
    def rsh(self):
        """The path of a program that starts a command on a host."""
        return str(self._rsh)

    def namespace(self, host):
        """The name of a host's network namespace."""
        return self._namespace(host)

    def address(self, host):
        """The address of a host."""
        return _address(self.hosts.index(host) + 1)

    def on(self, host, command):
        """The command line that runs a command on a host."""
        return [str(self._rsh), host, *map(_quoted, command)]

    def mpirun(self, local_size, arguments):
        """The command line of a job with `local_size` ranks on each host."""
        hosts = ",".join(f"{host}:{local_size}" for host in self.hosts)
        size = local_size * len(self.hosts)
        return self.on(
            self.hosts[0],
            [mpi.mpirun(), "-launcher", "rsh", "-launcher-exec", self._rsh, "-hosts", hosts,
             "-np", size, sys.executable, *arguments],
        )  # fmt: skip

    def processes(self, host):
        """The ids of the processes that run on a host."""
        return [int(pid) for pid in _run("ip", "netns", "pids", self._namespace(host)).split()]

    def signal(self, host, number):
        """Sends a signal to all processes of a host."""
        for pid in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end_processes(self, host):
        """Kills all processes of a host, as if it had lost its power."""
        limit = time.monotonic() + 10
        while pids := self.processes(host):
            if time.monotonic() > limit:
                raise RuntimeError(f"processes {pids} of {host} outlive SIGKILL")
            self.signal(host, signal.SIGKILL)
            time.sleep(0.02)

    def cut_off(self, host):
        """Takes down a host's connection to the network."""
        _run("ip", "-n", self._namespace(host), "link", "set", "eth0", "down")

    def connect_again(self, host):
        """Takes up the connection of a host that was cut off."""
        _run("ip", "-n", self._namespace(host), "link", "set", "eth0", "up")

    def set_names(self, host, names):
        """Replaces the names that a host knows.

        Args:
            host: String.
            names: Dictionary from names to the host whose address each has.
        """
        lines = [f"{self.address(named)} {name}" for name, named in names.items()]
        text = "\n".join(["127.0.0.1 localhost", *lines, ""])
        pathlib.Path("/etc/netns", self._namespace(host), "hosts").write_text(text)

    def drop_connections(self, host, but):
        """Makes a host drop what others send to it by TCP, as a firewall does, but answers to it.

        Args:
            host: String.
            but: Range of ports of that host that stay open, such as `20000-20010`.
        """
        rule = ("ip", "-n", self._namespace(host), "rule", "add", "pref")
        incoming = ("iif", "eth0", "ipproto", "tcp")
        _run(*rule, "13", "lookup", "local")
        _run("ip", "-n", self._namespace(host), "rule", "del", "pref", "0")
        _run(*rule, "10", *incoming, "sport", "22", "lookup", "local")  # its own logins on others
        _run(*rule, "11", *incoming, "dport", but, "lookup", "local")
        _run(*rule, "12", *incoming, "lookup", "100")
        _run("ip", "-n", self._namespace(host), "route", "add", "blackhole", "default",
             "table", "100")  # fmt: skip

    def listens(self, host, port):
        """Whether a process listens on a TCP port of a host."""
        table = _run("ip", "netns", "exec", self._namespace(host), "cat", "/proc/net/tcp")
        rows = [line.split() for line in table.splitlines()[1:]]
        return any(int(row[1][-4:], 16) == port and row[3] == _LISTEN for row in rows)

    def addresses(self):
        """The address of each host, by its name."""
        return {host: _address(number) for number, host in enumerate(self.hosts, 1)}

    def uplinks(self):
        """For each outermost group, the arguments of `bytes_sent` that count what leaves it."""
        outermost = [group for group in self._groups() if "/" not in group]
        return {group: [self._namespace("switch"), _uplink_of(group)] for group in outermost}

    def environment(self, extra=None):
        """What makes MPI take the network for what it is, instead of looking through it."""
        over_tcp = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "UCX_TLS": "tcp,self"}
        return mpi.environment({**over_tcp, **(extra or {})})


@contextlib.contextmanager
def slow_wire(namespace, source, target, fault):
    """Within a context, passes what reaches one device to another: see `slow_wire.py`."""
    line = ["ip", "netns", "exec", namespace, sys.executable, _WIRE, source, target, fault]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as wire:
        wire.stdout.readline()  # it is ready
        try:
            yield
        finally:
            wire.kill()


def bytes_sent(namespace, device):
    """What a network device has sent since it was made."""
    shown = _run("ip", "-n", namespace, "-json", "-statistics", "link", "show", device)
    return json.loads(shown)[0]["stats64"]["tx"]["bytes"]


# Names of devices may have 15 characters, and no slash.
def _switch_of(group):
    return f"rack-{group.replace('/', '.')}"


def _uplink_of(group):
    return f"up-{group.replace('/', '.')}"


def _downlink_of(group):
    return f"down-{group.replace('/', '.')}"


def _address(number):
    return f"10.99.0.{number}"


def _quoted(argument):
    return "'" + str(argument).replace("'", "'\\''") + "'"


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
