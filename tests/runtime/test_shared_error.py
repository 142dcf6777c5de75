"""Which errors of the ranks of a host count as the same."""

from easyddl.hosts import launched_process
from easyddl.runtime import shared_error


def test_errors_that_differ_in_an_address_are_printed_once(monkeypatch):
    monkeypatch.setattr(launched_process, "nearest", lambda: "17:1")
    monkeypatch.setattr(launched_process, "is_supervised", lambda: False)
    texts = [f"<__main__.A object at 0x7f65c2a418{n}0> is no number" for n in range(2)]
    errors = [shared_error.SharedError(text) for text in (*texts, "another error")]
    assert [error.is_printed_by_another() for error in errors] == [False, True, False]
    for error in errors:
        error._socket.close()
