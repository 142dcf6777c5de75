"""The kernel's information on a TCP connection: round-trip time, lost packets, bytes received."""

import socket
import struct
import typing

# struct tcp_info of linux/tcp.h: 8 bytes, 24 integers of 32 bits, then the fields below. The kernel
# only ever appends fields; an older kernel returns fewer bytes.
_SIZE = 224
_LAYOUT = struct.Struct("=8x 24I 4Q 6I 4Q 2I 2Q 2I")


class TcpInfo(typing.NamedTuple):
    """The fields that are used here, with times in microseconds."""

    min_rtt: int
    retransmitted: int
    needless: int
    sent: int
    acknowledged: int

    @property
    def lost(self):
        """The number of lost packets: retransmissions, without those reported as needless."""
        return max(0, self.retransmitted - self.needless)


def read(connection):
    """Reads the state of a connection.

    Args:
        connection: Socket.

    Returns:
        `TcpInfo`. `sent` counts packets with data, `acknowledged` bytes.

    Raises:
        OSError: If the connection is closed.
    """
    data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    fields = _LAYOUT.unpack(data.ljust(_SIZE, b"\0"))
    return TcpInfo(
        min_rtt=fields[31],
        retransmitted=fields[23],
        needless=fields[42],
        sent=fields[33],
        acknowledged=fields[26],
    )
