"""A job of `easyddl run --restarts` on hosts of a test."""

import re
import subprocess
import sys

import mpi


class Run:
    """A job that runs while the test takes something from it.

    Args:
        network_and_servers: Pair: `network.Network` and `ssh.Servers`. `easyddl run` is on h1.
        script: Path of the script of the ranks.
        *arguments: Its arguments.
        hosts: String. The hosts, as `-H` takes them.
        options: Tuple of further options of `easyddl run`.
        env: Dictionary of further environment variables.
    """

    def __init__(self, network_and_servers, script, *arguments, hosts="h1:1,h2:1,h3:1", options=(),
                 env=()):  # fmt: skip
        net, servers = network_and_servers
        line = ["--quiet", "--restarts", 2, "--host-timeout", 5, "-H", hosts, *options]
        line = [sys.executable, "-m", "easyddl", "run", *line, "--", sys.executable, script]
        path = {"PYTHONPATH": mpi.environment()["PYTHONPATH"]}
        self._process = subprocess.Popen(
            net.on("h1", map(str, [*line, *arguments])),
            env=servers.environment({**path, **dict(env)}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def wait_for(self, pattern, count=1):
        """Reads output until it has a number of matches."""
        while len(re.findall(pattern, self.output, re.M)) < count:
            line = self._process.stdout.readline()
            assert line, self.output
            self.output += line

    def finish(self, limit=90):
        """Returns the exit status, if the job ends within some seconds."""
        try:
            self.output += self._process.communicate(timeout=limit)[0]
        finally:
            mpi.stop_session(self._process)
        return self._process.returncode
