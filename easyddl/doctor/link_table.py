"""The measurements of each link, in each direction."""

import dataclasses

_AGREE = 0.95
_PROBLEMS = 2  # failed measurements without a good one after which a link counts as broken


@dataclasses.dataclass
class Link:
    """The measurements of the link from one host to another.

    Attributes:
        min_rtt: Number. The shortest round trip in seconds that the kernel measured.
        median_rtt: Number. The smallest median of the round trips between processes, in seconds.
        rates: List of numbers. The bytes per second of each measurement.
        sent: Integer. The number of small packets sent.
        lost: Integer. The number of small packets lost.
        retransmitted: Integer. Packets retransmitted at full rate, where some loss is normal.
        interface_address: String. The address of the sender's network device.
        problems: List of strings. The reasons why measurements failed.
        measured: Integer. The number of measurements that succeeded.
        confirmed: Boolean. Whether the link was still bad when it was measured again.
    """

    min_rtt: float | None = None
    median_rtt: float | None = None
    rates: list = dataclasses.field(default_factory=list)
    sent: int = 0
    lost: int = 0
    retransmitted: int = 0
    interface_address: str | None = None
    problems: list = dataclasses.field(default_factory=list)
    measured: int = 0
    confirmed: bool = False

    def add(self, result):
        """Adds a measurement: see `probe.measure`."""
        self.measured += 1
        self.min_rtt = _smaller(self.min_rtt, result["min_rtt"])
        self.median_rtt = _smaller(self.median_rtt, result["median_rtt"])
        self.rates += [result["rate"]] if result.get("rate") else []
        self.sent += result["sent"]
        self.lost += result["lost"]
        self.retransmitted += result.get("retransmitted", 0)
        self.interface_address = result["interface_address"]

    @property
    def rate(self):
        """The best rate; `None` if none was measured."""
        return max(self.rates, default=None)

    @property
    def agreeing_rates(self):
        """The number of measurements that found nearly the best rate.

        If several rates agree, the link itself limits the rate. If other work disturbs the
        measurements, the rates differ.
        """
        return sum(rate > _AGREE * self.rate for rate in self.rates)

    @property
    def loss(self):
        """The share of packets that were lost."""
        return self.lost / self.sent if self.sent else 0.0

    @property
    def is_broken(self):
        """Whether several measurements failed and none succeeded."""
        return not self.measured and len(self.problems) >= _PROBLEMS

    def as_json(self):
        """Converts the measurements to JSON data."""
        return {**dataclasses.asdict(self), "rate": self.rate, "loss": self.loss}


def _smaller(known, new):
    return new if known is None else min(known, new)


def rounds(hosts):
    """Divides all pairs of hosts into rounds. In a round each host is in at most one pair.

    So links that are measured at the same time share no host. This is the circle method of
    round-robin tournaments: one host stays in place while the others rotate.

    Args:
        hosts: List of strings.

    Returns:
        List of lists of pairs.
    """
    circle = [*hosts] if len(hosts) % 2 == 0 else [*hosts, None]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([pair for pair in pairs if None not in pair])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found
