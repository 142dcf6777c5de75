"""Which errors end the collectives of all ranks, and what follows if ending them fails."""

import pytest

from easyddl.runtime import settled_errors

ERROR = TimeoutError("raised again and again")


def raise_it():
    raise ERROR


def test_an_error_is_settled_only_in_the_call_in_which_all_ranks_agreed_on_it():
    found = []

    def note(error):
        found.append(settled_errors.is_settled(error))

    def agree():
        raise settled_errors.settled(ERROR)

    def agree_within():
        settled_errors.call(agree, note)

    for function in (agree_within, raise_it):
        with pytest.raises(TimeoutError):
            settled_errors.call(function, note)
    assert found == [True, True, False]


def test_what_could_not_be_given_up_is_given_up_before_the_next_call():
    told = []

    def fail_once(error):
        told.append(error)
        if len(told) == 1:
            raise MemoryError

    with pytest.raises(MemoryError):
        settled_errors.call(raise_it, fail_once)
    assert settled_errors.call(lambda: len(told), fail_once) == 2
    assert settled_errors.call(lambda: len(told), fail_once) == 2


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("no space left\nTry another folder.", "OSError: no space left"),
        ("", "OSError"),
        (
            "Graph execution error:\n\nDetected at node PyFunc defined at (last call last):\n"
            '  File "train.py", line 3, in <module>\n\n<stack traces unavailable>\n'
            "KeyError: 'cat'\nTraceback (most recent call last):\n",
            "OSError: KeyError: 'cat'",
        ),
        ("The columns are missing:\nage\n", "OSError: The columns are missing:"),
        ("Graph execution error:\n", "OSError: Graph execution error:"),
    ],
)
def test_the_reason_names_the_cause(text, cause):
    reason = settled_errors.why_given_up(OSError(text), "model.fit()")
    assert reason == f"model.fit() was given up by {cause}"
