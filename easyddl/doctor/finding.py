"""A finding of an examination."""

import dataclasses
import enum


class Level(enum.Enum):
    """How bad a finding is. With an error, training cannot start."""

    ERROR = "error"
    WARNING = "warning"
    FINE = "fine"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        level: `Level`.
        subject: String. What was examined, such as `"links"`.
        hosts: Tuple of strings: the host, or the two ends of a link; empty if it concerns all.
        message: String. What was found.
        advice: String. What to do; empty for what is fine.
    """

    level: Level
    subject: str
    message: str
    hosts: tuple = ()
    advice: str = ""

    def as_json(self):
        """Converts the finding to what JSON can represent."""
        return {**dataclasses.asdict(self), "level": self.level.value, "hosts": list(self.hosts)}


def fine(subject, message, hosts=()):
    """A finding that needs nothing to be done."""
    return Finding(Level.FINE, subject, message, tuple(hosts))


def warning(subject, message, advice, hosts=()):
    """A finding with which training works, but slowly or not always."""
    return Finding(Level.WARNING, subject, message, tuple(hosts), advice)


def error(subject, message, advice, hosts=()):
    """A finding with which training cannot start."""
    return Finding(Level.ERROR, subject, message, tuple(hosts), advice)
