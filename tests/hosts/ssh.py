"""OpenSSH's server on each host of a network, with keys of its own.

    with network.Network(2) as net, ssh.Servers(net, {"h2": "refused"}) as servers:
        mpi.run_command(net.on("h1", [servers.program, "h2", "hostname"]), servers.environment())

`servers.program` is an `ssh` for `--rsh` and the like. `servers.environment()` has a PATH in which
it comes first, for what calls `ssh` by its name. Both work on the network's hosts alone.
"""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import network

PORT = 22
SECONDS_TO_START = 20

FAULTS = {
    "refused": "the host knows no key of the user",
    "hanging": "the login succeeds, but the command is never started",
    "silent": "the port is open, but no server answers",
    "absent": "nothing listens on the port",
    "unknown": "the user does not know the host's key",
}

_SILENT = """
import socket, time
listener = socket.create_server(("0.0.0.0", {port}))
time.sleep(3600)
"""


def missing():
    """Why there can be no such servers here, or `None`."""
    if _sshd() is None or shutil.which("ssh") is None:
        return "needs OpenSSH (Debian's packages openssh-server and openssh-client)"
    return network.missing()


class Servers(network.SetUp):
    """An sshd on each host, which admits the key of the test as root.

    When they end, they end every process that is left on the hosts.

    Args:
        net: `network.Network`, entered.
        faults: Dictionary from names of hosts to keys of `FAULTS`.

    Attributes:
        program: Path of an `ssh` that knows the hosts and their keys.
        folder: Path of the folder that holds keys, configurations and logs.
    """

    def __init__(self, net, faults=None):
        self._net = net
        self._faults = faults or {}
        assert set(self._faults) <= set(net.hosts) and set(self._faults.values()) <= set(FAULTS)
        super().__init__()

    def _set_up(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="easyddl-ssh-"))
        self._cleanup.callback(shutil.rmtree, self.folder)
        self._make_keys()
        self._make_client()
        self._servers = {host: self._start(host) for host in self._net.hosts}
        for host, process in self._servers.items():
            self._wait_for(host, process)

    def environment(self, extra=None):
        """The environment of a job on the hosts, which finds this `ssh` first."""
        path = os.pathsep.join([str(self.program.parent), os.environ.get("PATH", "")])
        return self._net.environment({"PATH": path, **(extra or {})})

    def hide(self, host, folder):
        """Shows an empty folder in place of another one to those who log in to a host."""
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(folder)]
        subprocess.run(["nsenter", "-m", "-t", str(self._servers[host].pid), *mount], check=True)

    def _make_keys(self):
        for name in ("user", "host", "other"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                check=True,
            )
        key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text(f"h*,10.99.0.* {key}\n")
        (self.folder / "nobody").touch()

    def _make_client(self):
        config = self.folder / "client.conf"
        config.write_text(
            "Host *\n"
            f"  Port {PORT}\n"
            "  User root\n"
            f"  IdentityFile {self.folder}/user\n"
            "  IdentitiesOnly yes\n"
            "  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n"
            "  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
        )
        self.program = self.folder / "bin" / "ssh"
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def _start(self, host):
        """Starts what listens on a host; returns its process, or `None`."""
        fault = self._faults.get(host)
        if fault == "absent":
            return None
        command = [sys.executable, "-c", _SILENT.format(port=PORT)]
        if fault != "silent":
            config = self._configuration(host, fault)
            # The server insists on a folder in /run, which only Debian's own service makes. The
            # mount is seen by this host's processes alone.
            prepare = "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd"
            serve = f"exec {_sshd()} -D -f {config} -E {self._log(host)}"
            command = ["sh", "-c", f"{prepare} && {serve}"]
        with open(self._log(host), "wb") as log:
            process = subprocess.Popen(
                self._net.on(host, ["exec", *command]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._cleanup.callback(self._stop, host, process)
        return process

    def _configuration(self, host, fault):
        path = self.folder / f"{host}.conf"
        lines = [
            f"Port {PORT}",
            f"HostKey {self.folder}/{'other' if fault == 'unknown' else 'host'}",
            f"AuthorizedKeysFile {self.folder}/{'nobody' if fault == 'refused' else 'user.pub'}",
            "PidFile none",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "StrictModes no",  # the temporary folder may be anywhere
            "UsePAM no",
            "UseDNS no",
            "LogLevel VERBOSE",
        ]
        if fault == "hanging":
            lines.append("ForceCommand exec sleep 3600")
        path.write_text("\n".join([*lines, ""]))
        return path

    def _log(self, host):
        return self.folder / f"{host}.log"

    def _wait_for(self, host, process):
        limit = time.monotonic() + SECONDS_TO_START
        while process is not None and not self._net.listens(host, PORT):
            if process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"no sshd on {host}: {self._log(host).read_text()}")
            time.sleep(0.02)

    def _stop(self, host, process):
        process.terminate()
        process.wait(10)
        # A server leaves the commands that it has started to themselves.
        self._net.end_processes(host)


def _sshd():
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
