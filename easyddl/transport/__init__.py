"""Connections between the processes of a job: the handshake, and the messages after it."""
