"""What all ranks must have equal, and how they find what differs."""
