"""Passes packets from one network device to another, and delays or loses some.

    slow_wire.py FROM TO delay | loss | none

It stands in for the kernel's netem, which not every kernel has.
"""

import collections
import random
import select
import socket
import sys
import time

DELAY, LOSS = 0.020, 0.02
PACKET_VNET_HDR, OUTGOING = 15, 4
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
EVERYTHING = 0x0003  # ETH_P_ALL


def opened(device):
    """A socket that sends and receives whole frames, with the kernel's notes on segmentation."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    wire.setsockopt(263, PACKET_VNET_HDR, 1)
    for buffer in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
        wire.setsockopt(socket.SOL_SOCKET, buffer, 128 << 20)
    wire.bind((device, EVERYTHING))
    wire.setblocking(False)
    return wire


def main(source, target, fault):
    source, target = opened(source), opened(target)
    waiting = collections.deque()
    delay = DELAY if fault == "delay" else 0.0
    print("ready", flush=True)
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        select.select([source], [], [], timeout)
        now = time.monotonic()
        while True:
            try:
                frame, address = source.recvfrom(1 << 17)
            except BlockingIOError:
                break
            if address[2] != OUTGOING and not (fault == "loss" and random.random() < LOSS):
                waiting.append((now + delay, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            try:
                target.send(waiting.popleft()[1])
            except OSError as error:
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
