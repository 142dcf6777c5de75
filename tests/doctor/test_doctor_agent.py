"""Agents of `easyddl doctor`: who is let in, what is measured, and when an agent ends."""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from easyddl.doctor import link_ports, probe, remote_agent, report, topology
from easyddl.doctor.agent_start import Program, agent_command, end_all
from easyddl.doctor.coordinator import Coordinator
from easyddl.doctor.examination import Results, examine
from easyddl.doctor.finding import error, fine, warning
from easyddl.doctor.link_table import Link
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection

TIMEOUT = 60


def test_a_link_to_this_host_is_measured():
    ports = link_ports.open_ports("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    addresses = ["127.0.0.1"]
    reached = probe.reach({"a": (addresses, ports), "b": (addresses, [closed])})
    assert reached["a"] == {"address": "127.0.0.1", "ports": dict.fromkeys(map(str, ports))}
    assert reached["b"]["address"] is None
    assert "refused" in reached["b"]["ports"][str(closed)]
    arguments = ["secret", "127.0.0.1", ports[0]]
    found = probe.measure(*arguments, packets=80, seconds=0.2)
    assert 0 < found["min_rtt"] < 1
    assert 80 <= found["sent"] < 200
    assert found["rate"] > 1e6
    with pytest.raises(OSError):
        probe.measure("wrong", "127.0.0.1", ports[0], packets=8, seconds=0)


def test_a_mean_rate_is_of_the_time_in_which_others_send_too(monkeypatch):
    [port] = link_ports.open_ports("secret")[:1]
    rates = iter([[50, 100], [100, 100]])
    monkeypatch.setattr(probe, "_send_for", lambda *_: next(rates))
    found = probe.measure("secret", "127.0.0.1", port, packets=8, seconds=0.2)
    assert (found["rate"], found["mean_rate"]) == (100, 75)


def started(coordinator, host):
    agent = Program(agent_command(host, coordinator), coordinator.token)
    end = time.monotonic() + TIMEOUT
    while host not in coordinator.agents:
        assert not agent.has_ended(), agent.reason()
        assert time.monotonic() < end
        coordinator.accept(0.1)
    return agent


def test_an_agent_answers_and_ends_with_its_connection():
    with Coordinator() as coordinator:
        program = started(coordinator, "here")
        remote = coordinator.agents["here"]
        offset, doubt = remote.clock_offset()
        assert abs(offset) <= doubt + 0.1
        with pytest.raises(RuntimeError, match="KeyError"):
            remote.ask("no such question").result(TIMEOUT)
        with pytest.raises(RuntimeError, match="TypeError"):
            remote.ask("names", wrong=1).result(TIMEOUT)
        assert remote.ask("facts").result(TIMEOUT)["hostname"] == socket.gethostname()
    assert program.wait(TIMEOUT), "the agent goes on without its coordinator"
    program.close()


def test_questions_to_an_agent_that_dies_fail_at_once():
    with Coordinator() as coordinator:
        program = started(coordinator, "here")
        waiting = coordinator.agents["here"].ask("memory", rounds=10_000)
        program.kill()
        with pytest.raises(ConnectionError):
            waiting.result(TIMEOUT)
        with pytest.raises(ConnectionError):
            coordinator.agents["here"].ask("facts").result(TIMEOUT)
        end_all([program])


def impostor(coordinator):
    """A connection of something that knows the token and calls itself an agent."""

    def connect():
        address = ("127.0.0.1", coordinator.port)
        connection = Connection(handshake.connect(address, coordinator.token, protocol.MESSAGES))
        connection.send(host="here")
        return connection

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        connection = pool.submit(connect)
        while "here" not in coordinator.agents:
            coordinator.accept(0.1)
    return connection.result()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff" * 100, "the connection broke: received data that is not a valid message"),
        (b"", "its agent ended"),
        (None, "no answer within 1 seconds"),
    ],
)
def test_an_agent_that_sends_no_answer_is_lost(data, reason, monkeypatch):
    monkeypatch.setattr(remote_agent, "_TIMEOUT", 1)
    with Coordinator() as coordinator:
        connection = impostor(coordinator)
        waiting = coordinator.agents["here"].ask("facts")
        if data:
            connection.socket.sendall(data)
        elif data is not None:
            connection.close()
        with pytest.raises(ConnectionError, match=reason):
            waiting.result(TIMEOUT)
        connection.close()


def test_an_agent_with_a_wrong_token_is_not_let_in():
    with Coordinator() as coordinator:
        program = Program(agent_command("here", coordinator), "wrong")
        end = time.monotonic() + TIMEOUT
        while not program.has_ended():
            assert time.monotonic() < end
            coordinator.accept(0.1)
        assert coordinator.agents == {}
        assert "token" in program.reason() or "closed" in program.reason()
        end_all([program])


def test_this_host_alone():
    how = {"launcher": "auto", "rsh": None, "nic": None, "start_timeout": 30.0}
    results = examine(None, argparse.Namespace(**how, seconds=5))
    assert results.hosts == [socket.gethostname()]
    assert list(results.facts) == results.hosts
    told = json.loads(json.dumps(report.as_json(results, topology.describe(results))))
    assert told["can_start"] == results.can_start
    assert told["hosts"][0]["reached"]
    assert told["topology"]["tree"].startswith("1 host")
    assert socket.gethostname() in report.as_text(results)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_examination(number):
    line = [sys.executable, "-m", "easyddl", "doctor"]
    job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        children = f"/proc/{job.pid}/task/{job.pid}/children"
        end = time.monotonic() + TIMEOUT
        while not (found := pathlib.Path(children).read_text().split()):
            assert job.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        os.kill(job.pid, number)
        output, _ = job.communicate(timeout=TIMEOUT)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 130, output
    assert "interrupted" in output
    assert not os.path.exists(f"/proc/{found[0]}")


def results_of(findings):
    names = ["h1", "h2", "h3"]
    links = {each: Link() for each in itertools.permutations(names, 2)}
    links["h1", "h2"].add(
        {"min_rtt": 1e-4, "median_rtt": 2e-4, "rate": 1.25e8, "sent": 400, "lost": 0,
         "retransmitted": 0, "interface_address": "10.0.0.1"}
    )  # fmt: skip
    return Results(names, links=links, findings=findings, seconds=1.5)


def test_a_report_tells_findings_advice_and_verdict():
    bad = error("ports", "port 1 is closed", "open it", ["h1"])
    results = results_of([bad, warning("links", "slow", "hurry"), fine("memory", "usual")])
    text = report.as_text(results).splitlines()
    assert text[0].split() == ["ERROR", "ports", "port", "1", "is", "closed"]
    assert text[1].split() == ["->", "open", "it"]
    assert text[-1] == "Training cannot start: 1 error, 1 warning (1.5 s)."
    told = report.as_json(results)
    assert not told["can_start"]
    assert told["findings"][0] == {
        "level": "error",
        "subject": "ports",
        "message": "port 1 is closed",
        "hosts": ["h1"],
        "advice": "open it",
    }
    assert len(told["links"]) == 6
    assert told["links"][0]["rate"] == 1.25e8
    assert [host["reached"] for host in told["hosts"]] == [False] * 3
    results.findings.remove(bad)  # warnings do not keep training from starting
    assert results.can_start
    assert report.as_text(results).endswith("Training can start: 1 warning (1.5 s).")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-H", "h1,,h2"], "-H"),
        (["-H", "h1", "--hostfile", "x"], "not allowed"),
        (["--hostfile", "/no/such/file"], "/no/such/file"),
        (["-H", "h1,h2", "--racks", "x"], "--racks"),
        (["-H", "h1,h2", "--racks", "a/x,y"], "as many parts"),
        (["--seconds", "-1"], "--seconds"),
        (["--start-timeout", "soon"], "--start-timeout"),
    ],
)
def test_wrong_arguments_are_refused(arguments, word):
    line = [sys.executable, "-m", "easyddl", "doctor", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2
    assert word in done.stderr
