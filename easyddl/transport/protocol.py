"""The protocol of connections.

A connection begins with the three messages of the handshake (see `handshake`), whose sizes are
fixed. The client's claim contains the kind of the connection. After the handshake, the kind
determines what is sent:

- `MESSAGES`: messages in both directions, as `connection.Connection` sends and receives them. In
  the first message the client introduces itself. Then it waits for a message of the server.
- `ALIVE`: no data. The kernel finds out whether the other host still answers.
- `PROBE`: bytes that measure a link. The server answers with one byte for every n bytes, where n is
  the claimed number.

A message consists, in this order, of `PREFIX`, which has the size of the header and the number of
buffers; the size of each buffer; the header, a JSON object; and the buffers.
"""

import struct

# In the handshake.
LIMIT = 10.0  # seconds within which each side must complete the handshake
NONCE = PROOF = 32  # bytes
CLAIM = struct.Struct("!BI")  # the kind of the connection, and a number such as the rank

# The maximal number of clients that are in the handshake at the same time. The clients of a job
# finish it within a round trip, so few of them are in it at once, even in a job of thousands. Only
# clients without the token stay in it.
ROOM = 256

# After the handshake: the kinds of connections.
MESSAGES, ALIVE, PROBE = range(3)

PREFIX = struct.Struct("!II")
SIZE = struct.Struct("!Q")  # of a buffer
LARGEST = 64 << 20  # bytes of a message, unless its receiver allows more
