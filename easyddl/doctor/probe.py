"""Measures the link from this host to another: latency, lost packets, bandwidth.

Times and losses come from the kernel's TCP_INFO if possible, because load on a host delays
processes much more than it delays the kernel's handling of packets.
"""

import concurrent.futures
import itertools
import socket
import statistics
import time

from easyddl.doctor import tcp_info
from easyddl.transport import handshake, protocol

_MESSAGE = bytes(64)
_PINGS, _PING_SECONDS = 30, 0.15
# So few packets at once that no switch or device needs to drop one of them.
_BATCH = 8
_CHUNK = bytes(1 << 18)
_WINDOW = 0.08  # seconds; the bandwidth is measured in the best window
_LONGEST = 5  # seconds, in which a rate may grow,
_GROWS = 1.2  # which it does if a later window has so much more than the first one
_SILENCE = 8
_REACH = 3.2  # seconds, in which the kernel repeats a lost first packet after 1 and 3 seconds
_ATTEMPTS = 256  # at once


def reach(targets):
    """Tries the ports of other hosts.

    Args:
        targets: Dictionary by host of pairs: the list of its addresses, and that of its ports.

    Returns:
        Dictionary by host of dictionaries: `address`, the first address that answers, or `None`;
        `ports`, a dictionary that has for each port the reason why it cannot be reached, or `None`
        if it can.
    """
    # Try all ports at once, because each port that a firewall closes takes the whole timeout.
    with concurrent.futures.ThreadPoolExecutor(_ATTEMPTS) as pool:
        attempts = {
            host: {port: pool.submit(_attempt, addresses, port) for port in ports}
            for host, (addresses, ports) in targets.items()
        }
    found = {}
    for host, of_host in attempts.items():
        answers = {str(port): attempt.result() for port, attempt in of_host.items()}
        address = next((address for address, _ in answers.values() if address), None)
        reasons = {port: reason for port, (_, reason) in answers.items()}
        found[host] = {"address": address, "ports": reasons}
    return found


def _attempt(addresses, port):
    """Returns the first address at which a port can be reached, and the reason why it cannot."""
    reasons = []
    for address in addresses:
        try:
            socket.create_connection((address, port), _REACH).close()
            return address, None
        except OSError as error:
            reasons.append(str(error.strerror or error))
    return None, reasons[0] if reasons else "the host has no address"


def measure(token, address, port, packets, seconds):
    """Measures the link to another host, whose agent listens on a port.

    Args:
        token: String. The secret of this examination.
        address: String.
        port: Integer.
        packets: Integer. The number of small packets to send, to count how many are lost.
        seconds: Number. How long to send at full rate, once it is steady; with 0 the rate is not
            measured.

    Returns:
        Dictionary: `min_rtt` and `median_rtt` in seconds, `sent` and `lost` packets, `rate` in
        bytes per second in the best window, `mean_rate` of all windows of the first `seconds`, in
        which links that are measured at once all send, `retransmitted` packets at full rate.

    Raises:
        OSError: If the other host does not answer.
    """
    result = {}
    with _connected(token, address, port, len(_MESSAGE)) as connection:
        result["median_rtt"] = _ping(connection)
        _send_batches(connection, packets)
        info = tcp_info.read(connection)
        result.update(min_rtt=info.min_rtt / 1e6, sent=info.sent, lost=info.lost)
        result["interface_address"] = connection.getsockname()[0]
    if seconds:
        with _connected(token, address, port, 0) as connection:
            first, last = _send_all(connection, seconds)
            result.update(rate=max(last), mean_rate=statistics.mean(first))
            result["retransmitted"] = tcp_info.read(connection).lost
    return result


def _connected(token, address, port, every):
    """Connects to the other agent, which answers one byte for every `every` bytes."""
    sock = handshake.connect((address, port), token, protocol.PROBE, every, timeout=_SILENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(_SILENCE)
    return sock


def _ping(connection):
    times, end = [], time.monotonic() + _PING_SECONDS
    while len(times) < _PINGS and (len(times) < 3 or time.monotonic() < end):
        start = time.perf_counter()
        connection.sendall(_MESSAGE)
        _receive(connection, 1)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _send_batches(connection, packets):
    """Sends small packets, a few at a time. Ends early if many are lost or late."""
    end = time.monotonic() + 0.3 + packets / 500
    for _ in range(packets // _BATCH):
        for _ in range(_BATCH):
            connection.sendall(_MESSAGE)
        _receive(connection, _BATCH)
        if time.monotonic() > end:
            return


def _receive(connection, count):
    while count:
        received = len(connection.recv(count))
        if not received:
            raise ConnectionError("the other agent closed the connection")
        count -= received


def _send_all(connection, seconds):
    """Sends at full rate for some seconds, and again while the rate grows.

    TCP doubles its rate once a round trip at first, so a distant host is reached at its full rate
    only after some seconds.

    Returns:
        Pair of lists with the bytes per second that the other host acknowledged in each window: of
        the first time, and of the last. Pauses in which other work uses the cores lower some
        windows only.
    """
    round_trip = tcp_info.read(connection).min_rtt / 1e6
    lengths = max(seconds, 4 * round_trip), max(_WINDOW, 2 * round_trip)
    end = time.perf_counter() + _LONGEST
    first = last = _send_for(connection, *lengths)
    while last[-1] >= _GROWS * last[0] and time.perf_counter() <= end:
        last = _send_for(connection, *lengths)
    return first, last


def _send_for(connection, seconds, window):
    start = now = time.perf_counter()
    marks = [(start, tcp_info.read(connection).acknowledged)]
    while now - start < seconds:
        connection.send(_CHUNK)
        now = time.perf_counter()
        if now - marks[-1][0] >= window:
            marks.append((now, tcp_info.read(connection).acknowledged))
    if len(marks) < 2:  # a single send took the whole time
        marks.append((now, tcp_info.read(connection).acknowledged))
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(marks)]
