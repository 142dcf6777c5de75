"""The kernel's information on a TCP connection: round-trip time, lost packets, bytes received."""

import socket
import struct
import typing

# struct tcp_info of linux/tcp.h: 8 bytes, 24 integers of 32 bits, then the fields below. The kernel
# only ever appends fields; an older kernel returns fewer bytes.
_SIZE = 224
_LAYOUT = struct.Struct("=8x 24I 4Q 6I 4Q 2I 2Q 2I")


class TcpInfo(typing.NamedTuple):
    """What is used here of the fields, with times in microseconds."""

    min_rtt: int
    lost: int
    sent: int
    acknowledged: int


def read(connection):
    """Reads the state of a connection.

    Args:
        connection: Socket.

    Returns:
        `TcpInfo`. `sent` counts packets with data, `acknowledged` bytes. `lost` counts the
        retransmitted packets, without those reported as needless.

    Raises:
        OSError: If the connection is closed.
    """
    data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    fields = _LAYOUT.unpack(data.ljust(_SIZE, b"\0"))
    lost = max(0, fields[23] - fields[42])
    return TcpInfo(min_rtt=fields[31], lost=lost, sent=fields[33], acknowledged=fields[26])
