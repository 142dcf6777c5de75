"""An examination: starts the agents, asks them all questions, and judges the answers."""

import concurrent.futures
import contextlib
import dataclasses
import socket
import time

from easyddl.doctor import (
    agent_start,
    judge_hosts,
    judge_links,
    judge_plan,
    judge_software,
    pair_survey,
)
from easyddl.doctor.coordinator import Coordinator
from easyddl.doctor.finding import Level, error
from easyddl.doctor.link_survey import LinkSurvey
from easyddl.doctor.remote_agent import gather

_MPI_NAME = "an MPI job"
_MPI_JOB = 15  # seconds for an MPI job after all ranks have started


@dataclasses.dataclass
class Results:
    """The results of an examination.

    Attributes:
        hosts: List of strings. All hosts that should be examined.
        facts: Dictionary by host of the agents' answers to `facts`.
        ranks: Dictionary by host of the number of ranks of a job that fills these hosts.
        memory: Dictionary by host of the agents' answers to `memory`.
        clocks: Dictionary by host of pairs in seconds: the offset of the clock and its uncertainty.
        links: Dictionary of `Link` by pair of hosts.
        findings: List of `Finding`, the worst first.
        seconds: Number. How long the examination took.
    """

    hosts: list
    facts: dict = dataclasses.field(default_factory=dict)
    ranks: dict = dataclasses.field(default_factory=dict)
    memory: dict = dataclasses.field(default_factory=dict)
    clocks: dict = dataclasses.field(default_factory=dict)
    links: dict = dataclasses.field(default_factory=dict)
    findings: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def can_start(self):
        """Whether training can start on these hosts."""
        return not any(finding.level is Level.ERROR for finding in self.findings)


def examine(hosts, options, progress=lambda text: None, racks=None, slots=None):
    """Examines hosts.

    Args:
        hosts: List of strings; `None` for this host alone, without a launcher.
        options: Namespace. How agents are started (see `agent_start`), and `seconds`, the time for
            measuring the links.
        progress: Function of a string that describes the current activity.
        racks: List of strings. The racks that a job on these hosts would have; `None` for none.
        slots: Dictionary by host of the number of ranks; `None` for none. On other hosts there is a
            rank for each GPU, or for each core without GPUs.

    Returns:
        `Results`.
    """
    begin = time.monotonic()
    with _examination(hosts, options, progress) as examination:
        results = examination.run(options.seconds, racks, slots or {})
    results.seconds = time.monotonic() - begin
    return results


def survey(hosts, options, progress):
    """Measures the rates between hosts, and nothing else.

    Args:
        hosts: List of strings.
        options: Namespace. How agents are started (see `agent_start`), and `seconds`, the time
            after which no repetition of the measurements begins.
        progress: Function of a string that describes the current activity.

    Returns:
        Pair of a `measured_network.Survey`, and a list of `Finding` of hosts that cannot be
        reached. The survey is `None` if there are any.
    """
    with _examination(hosts, options, progress) as examination:
        return examination.survey(options.seconds)


@contextlib.contextmanager
def _examination(hosts, options, progress):
    """Returns a context that ends all agents."""
    started = {}
    try:
        with Coordinator() as coordinator:
            yield _Examination(coordinator, hosts, options, started, progress)
    finally:
        agent_start.end_all(started.values())


class _Examination:
    def __init__(self, coordinator, hosts, options, started, progress):
        self._coordinator = coordinator
        self._options = options
        self._started = started
        self._progress = progress
        self._is_alone = hosts is None
        self._results = Results(hosts or [socket.gethostname()])
        self._reported = set()  # hosts that have a finding about their agent

    def survey(self, seconds):
        """Returns a `Survey`, and the findings of errors: see `survey`."""
        ends = self._reach(self._begin())
        errors = [each for each in self._results.findings if each.level is Level.ERROR]
        if errors:
            return None, errors
        return pair_survey.measure(self._agents(), ends, seconds, self._progress), []

    def run(self, seconds, racks, slots):
        """Examines the hosts, and returns `Results`."""
        results, findings = self._results, self._results.findings
        names = self._begin()
        for host, found in results.facts.items():
            there = found["hardware"]
            results.ranks[host] = slots.get(host) or len(there["gpus"]) or there["usable_cores"]
        self._compare_clocks()
        findings += judge_software.judge(results.facts)
        findings += judge_hosts.limits(results.facts, results.ranks)
        findings += judge_hosts.names(names, results.facts)
        findings += judge_hosts.clocks(results.clocks)
        ends = self._reach(names)
        self._measure_memory()
        survey = LinkSurvey(self._agents(), ends, seconds, self._progress)
        survey.measure()
        results.links = survey.links
        lasting = list(self._agents())  # also adds findings for lost agents
        findings += judge_links.links(lasting, results.links, survey.left_out)
        findings += judge_hosts.devices(results.facts, results.links)
        if judge_plan.is_worth_a_survey(results.links):
            pairs = pair_survey.measure(self._agents(), ends, seconds / 2, self._progress)
            named = dict(zip(results.hosts, racks, strict=True)) if racks else {}
            findings += judge_plan.gain(pairs, named)
        if results.can_start:
            self._start_mpi()
        order = list(Level)
        findings.sort(key=lambda finding: order.index(finding.level))
        return results

    def _begin(self):
        """Starts the agents, and reads their facts. Returns how each host resolves the names."""
        self._start()
        self._progress(f"reading the facts of {len(self._agents())} hosts")
        self._results.facts = self._ask_all("facts")
        return self._ask_all("names", names=self._results.hosts)

    def _start(self):
        """Starts the agents, and waits until each has arrived or failed."""
        hosts, coordinator = self._results.hosts, self._coordinator
        self._progress(f"starting {len(hosts)} agents")
        options = None if self._is_alone else self._options
        self._launch({host: [agent_start.agent, host, coordinator, options] for host in hosts})
        end = time.monotonic() + self._options.start_timeout
        missing = dict(self._started)
        while missing and time.monotonic() < end:
            self._progress(f"waiting for {', '.join(missing)}")
            self._coordinator.accept(0.1)
            for host, program in list(missing.items()):
                if host in self._coordinator.agents:
                    del missing[host]
                elif program.has_ended():
                    self._not_reached(host, program.reason())
                    del missing[host]
        for host, program in missing.items():
            waited = f"no answer within {self._options.start_timeout:g} seconds"
            slow = "; if the host is only slow, raise --start-timeout"
            self._not_reached(host, f"{waited} ({program.reason()})", slow)

    def _launch(self, calls):
        """Starts programs in threads, so that an interrupt cannot lose track of any of them.

        Interrupts reach the main thread only, and the end of the pool waits for its threads.

        Args:
            calls: Dictionary by name of lists: a function that starts a program, and its arguments.
        """

        def launch(name):
            function, *arguments = calls[name]
            self._started[name] = function(*arguments)

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(launch, calls))

    def _not_reached(self, host, reason, further_advice=""):
        self._reported.add(host)
        advice = (
            f"if the message names no remedy, check that `ssh {host} true` works without a "
            "password, and that the same version of easyddl is installed there in the same place"
            f"{further_advice}"
        )
        message = f"no agent could be started on {host}: {reason}"
        self._results.findings.append(error("hosts", message, advice, [host]))

    def _agents(self):
        """Returns the connected agents in the order of the hosts. Reports lost ones."""
        found = {}
        for host in self._results.hosts:
            agent = self._coordinator.agents.get(host)
            if agent is None or host in self._reported:
                continue
            if agent.lost is None:
                found[host] = agent
            else:
                self._reported.add(host)
                message = f"{host} was lost during the examination: {agent.lost}"
                advice = "check whether the host is still up and its network works"
                self._results.findings.append(error("hosts", message, advice, [host]))
        return found

    def _ask_all(self, question, **arguments):
        """Asks all agents a question, and adds a finding for each that fails to answer."""
        agents = self._agents()
        futures = {host: agent.ask(question, **arguments) for host, agent in agents.items()}
        answers, problems = gather(futures)
        for host, problem in problems.items():
            if agents[host].lost is None:
                message = f"{host} did not report its {question}: {problem}"
                advice = "check whether the host is overloaded, and whether its disks respond"
                self._results.findings.append(error("hosts", message, advice, [host]))
        return answers

    def _compare_clocks(self):
        for host, agent in self._agents().items():
            try:
                self._results.clocks[host] = agent.clock_offset()
            except (OSError, RuntimeError):
                continue  # there already is a finding about a lost agent

    def _reach(self, names):
        """Tries all ports. Returns an open address and port for each pair: see `LinkSurvey`."""
        self._progress("trying the ports of all hosts")
        facts, agents = self._results.facts, self._agents()
        hosts = [host for host in agents if host in facts]
        futures = {}
        for a in hosts:
            targets = {
                b: (self._addresses(a, b, names), facts[b]["ports"]) for b in hosts if b != a
            }
            futures[a] = agents[a].ask("reach", targets=targets)
        answers, _ = gather(futures)
        reached = {(a, b): each for a, found in answers.items() for b, each in found.items()}
        self._results.findings += judge_links.reachability(hosts, reached)
        ends = {}
        for pair, answer in reached.items():
            open_ports = [int(port) for port, reason in answer["ports"].items() if reason is None]
            if open_ports:
                ends[pair] = answer["address"], open_ports[0]
        return ends

    def _addresses(self, a, b, names):
        """Returns the addresses of host b. Those to which host a resolves its name come first."""
        own = [interface["address"] for interface in self._results.facts[b]["interfaces"]]
        named = names.get(a, {}).get(b, {}).get("addresses", [])
        return list(dict.fromkeys([address for address in named if address in own] + own))

    def _start_mpi(self):
        """Runs an MPI job on all hosts. Call it only if there are no errors so far."""
        self._progress("starting an MPI job")
        hosts = None if self._is_alone else self._results.hosts
        self._launch({_MPI_NAME: [agent_start.mpi_job, hosts, self._options]})
        program = self._started[_MPI_NAME]
        begin = time.monotonic()
        program.wait(self._options.start_timeout + _MPI_JOB)
        self._results.findings.append(
            judge_hosts.mpi_job(program.status, program.reason(), time.monotonic() - begin)
        )

    def _measure_memory(self):
        """Measures all hosts at once, and then the slow ones again, one by one."""
        self._progress("measuring memory")
        measured = self._results.memory = self._ask_all("memory")
        for _ in range(2):
            for host in judge_hosts.slow_memories(measured):
                agent = self._agents().get(host)
                again, _ = gather({host: agent.ask("memory")}) if agent else ({}, {})
                if again.get(host, {}).get("copy"):
                    measured[host] = {
                        "copy": max(measured[host]["copy"], again[host]["copy"]),
                        "latency": min(measured[host]["latency"], again[host]["latency"]),
                    }
        self._results.findings += judge_hosts.memory(measured)
