"""A finding of an examination."""

import dataclasses
import enum


class Level(enum.Enum):
    """The severity of a finding. With an error, training cannot start."""

    ERROR = "error"
    WARNING = "warning"
    FINE = "fine"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A finding: a problem, or the confirmation that something is fine.

    Attributes:
        level: `Level`.
        subject: String. The subject of the examination, such as `"links"`.
        message: String. What was found.
        hosts: Tuple of strings. The host, or the two ends of a link; empty if the finding concerns
            all hosts.
        advice: String. What to do; empty if nothing needs to be done.
    """

    level: Level
    subject: str
    message: str
    hosts: tuple = ()
    advice: str = ""

    def as_json(self):
        """Converts the finding to JSON data."""
        return {**dataclasses.asdict(self), "level": self.level.value, "hosts": list(self.hosts)}


def fine(subject, message):
    """Returns a finding that needs no action."""
    return Finding(Level.FINE, subject, message)


def warning(subject, message, advice, hosts=()):
    """Returns a finding of a problem with which training works, but slowly or not always."""
    return Finding(Level.WARNING, subject, message, tuple(hosts), advice)


def error(subject, message, advice, hosts=()):
    """Returns a finding of a problem with which training cannot start."""
    return Finding(Level.ERROR, subject, message, tuple(hosts), advice)
