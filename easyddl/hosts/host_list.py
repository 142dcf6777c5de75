"""Lists of hosts, in the notations of users, schedulers and their environment variables."""

import collections
import dataclasses
import re
import socket


@dataclasses.dataclass(frozen=True)
class HostSlots:
    """A host and the number of ranks that it may run.

    Attributes:
        name: String. A host name or an IPv4 address.
        slots: Positive integer, or `None` if the list gives no number.
    """

    name: str
    slots: int | None = None

    def __str__(self):
        return self.name if self.slots is None else f"{self.name}:{self.slots}"


_MOST_NAMES = 100_000  # of a range

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")


def parse(text, argument="-H"):
    """Reads a list such as `h1:4,h2:4`, `h1,h2` without slots, or `h[1-16]:4` in Slurm's notation.

    Args:
        text: String.
        argument: String. The name of the argument, for the error.

    Returns:
        List of `HostSlots`, in the order of the text.

    Raises:
        ValueError: If the text is not such a list, or names a host twice.
    """
    parts = re.split(r",(?![^\[\]]*\])", text)  # the commas within brackets are part of a name
    hosts = [host for part in parts for host in _hosts(part.strip(), text, argument)]
    return unique(hosts, argument)


def _hosts(part, text, argument):
    name, colon, slots = part.partition(":") if part.count(":") < 2 else (part, "", "")
    names = [name] if ":" in name else _expand(name)  # an IPv6 address may stand in brackets
    for each in names:
        check_name(each, argument, text)
    if not colon:
        return [HostSlots(each) for each in names]
    if not re.fullmatch(r"[1-9][0-9]*", slots):
        raise ValueError(
            f"`{argument}`: the slots of host {name} must be a positive integer, as in "
            f"`h1:4,h2:4`. Received: {part!r} in {text!r}"
        )
    return [HostSlots(each, int(slots)) for each in names]


def check_name(name, argument, text):
    """Raises an error unless a name is a valid host name or IPv4 address."""
    if name.count(":") > 1:
        raise ValueError(
            f"`{argument}`: {name!r} has several colons. An IPv6 address is not accepted, because "
            "launchers read the text after a colon as a number of slots. Use a name, for example "
            f"one of /etc/hosts. Received: {text!r}"
        )
    user, at, host = name.partition("@")
    if at:
        raise ValueError(
            f"`{argument}`: a host name must not contain a user. Write `User {user}` for the host "
            f"{host} into ~/.ssh/config. Received: {text!r}"
        )
    if not _NAME.match(name):
        raise ValueError(
            f"`{argument}` must be a list of hosts, as in `h1:4,h2:4`: {name!r} is not a valid "
            f"host name. Received: {text!r}"
        )


def is_this_host(name):
    """Returns whether a name certainly belongs to this host. Does not query the DNS."""
    own = socket.gethostname()
    return name in ("localhost", "127.0.0.1", own, own.partition(".")[0])


def unique(hosts, argument):
    """Returns a list of hosts unchanged. Raises an error if it names a host twice."""
    for name, count in collections.Counter(host.name for host in hosts).items():
        if count > 1:
            raise ValueError(
                f"`{argument}` names the host {name} {count} times. Name each host once, with all "
                f"its slots. Received: {','.join(map(str, hosts))}"
            )
    return hosts


def expand_names(text):
    """Expands Slurm's notation of host names: `n[1-3,07],m1` names n1, n2, n3, n07 and m1.

    Raises:
        ValueError: If the brackets do not match, or hold other than ranges of numbers.
    """
    if text.count("[") != text.count("]"):
        raise ValueError(f"A list of hosts must close its brackets. Received: {text!r}")
    parts = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    return [name for part in parts for name in _expand(part.strip())]


def _expand(part):
    found = re.search(r"\[([^\]]*)\]", part)
    if not found:
        return [part]
    before, after = part[: found.start()], part[found.end() :]
    names = []
    for item in found[1].split(","):
        first, dash, last = item.strip().partition("-")
        digits = last if dash else first
        are_numbers = all(text.isdecimal() and len(text) <= 18 for text in (first, digits))
        if not are_numbers or int(first) > int(digits):
            raise ValueError(
                "What the brackets of a list of hosts hold is not a range of numbers, such as "
                f"`[1-4]`. Received: {part!r}"
            )
        _check_count(int(digits) - int(first) + 1, part)
        numbers = range(int(first), int(digits) + 1)
        names += [f"{before}{number:0{len(first)}}" for number in numbers]
    ends = _expand(after)
    _check_count(len(names) * len(ends), part)
    return [name + end for name in names for end in ends]


def _check_count(count, part):
    if count > _MOST_NAMES:
        raise ValueError(
            f"A range of numbers may have {_MOST_NAMES} hosts at most. Received: {part!r}"
        )


def expand_counts(text):
    """Expands Slurm's notation of counts: `4(x2),3` is 4, 4, 3.

    Returns:
        List of integers; empty if the text is not of this form.
    """
    counts = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]+)(?:\(x([0-9]+)\))?\s*", part)
        if not found:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def fold(names):
    """Returns the short form of host names, as Slurm writes it. `expand_names` reads it.

    Args:
        names: List of strings.

    Returns:
        String. Names that differ only in their last number are joined, as in `h[1-3,7]`.
    """
    items = {}
    for name in names:
        before, digits, after = re.fullmatch(r"(.*?)(\d*)(\D*)", name).groups()
        items.setdefault((before, after), []).append(digits)
    return ",".join(
        before + _fold_numbers(numbers) + after for (before, after), numbers in items.items()
    )


def _fold_numbers(numbers):
    if len(numbers) == 1:
        return numbers[0]
    ranges = []
    for digits in numbers:
        last = ranges[-1][1] if ranges else ""
        if last and digits and digits == f"{int(last) + 1:0{len(last)}}":
            ranges[-1][1] = digits
        else:
            ranges.append([digits, digits])
    texts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    return f"[{','.join(texts)}]"
