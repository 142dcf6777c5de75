"""What is wrong with what the ranks of a job tell of a trial with a planted error.

A trial is a list by rank of what each rank tells: see `campaign_plan`.
"""

import re

import campaign_plan as plan

SOON = 10  # seconds in which a rank hears that it cannot go on


def described(trial, rank, i):
    call = trial[rank]["calls"][i]
    mistake = call.get("mistake", "")
    return f"rank {rank}, call {i} ({call['call']}{mistake}): {call}"


def calls_of(trial):
    """(rank, number of the call, what came of it) of all ranks."""
    return [(r, i, call) for r, ranks in enumerate(trial) for i, call in enumerate(ranks["calls"])]


def fired_at(trial):
    """In which calls the planted error was met, on any rank."""
    return {i for rank in trial for i in rank["fired_at"]}


def problems_of_passing(trial):
    """What is wrong with a trial that must leave the communicator usable."""
    kind, victim = trial[0]["kind"], trial[0]["victim"]
    fired = fired_at(trial)
    for rank, i, call in calls_of(trial):
        has_met = i in trial[rank]["fired_at"]
        if i not in fired:
            if call["verdict"] != "right":
                yield f"should be right: {described(trial, rank, i)}"
        elif call["verdict"] != "error":
            if has_met or kind.startswith("argument"):
                yield f"should raise: {described(trial, rank, i)}"
        elif not has_met and kind in ("argument", "memory"):
            if call["kind"] not in ("RuntimeError", "Error"):
                yield f"should raise RuntimeError: {described(trial, rank, i)}"
            if not re.search(rf"(?i)\branks? ([\d, ]*\b)?{victim}\b", call["text"]):
                yield f"should name rank {victim}: {described(trial, rank, i)}"


def problems_of_broken(trial, first, words):
    """What is wrong with the calls from the `first` on, once one ended half-way."""
    for rank, i, call in calls_of(trial):
        if i < first:
            if call["verdict"] != "right":
                yield f"should be right: {described(trial, rank, i)}"
        elif i > first and call["verdict"] != "error":
            yield f"should raise, as the communicator is broken: {described(trial, rank, i)}"
        elif call["verdict"] == "error" and call["kind"] != "KeyboardInterrupt":
            if call["kind"] not in ("RuntimeError", "Error"):
                yield f"should raise RuntimeError: {described(trial, rank, i)}"
            if not re.search(words, call["text"]):
                yield f"should name the first error: {described(trial, rank, i)}"


def interrupt_of(rank):
    """A pattern of texts that tell of a rank's interrupt."""
    return rf"(?is)\brank {rank}\b.*interrupt|interrupt.*\brank {rank}\b"


def problems_of_interrupt(trial):
    """What is wrong where a signal has come to one rank."""
    victim = trial[0]["victim"]
    kinds = [call.get("kind") for call in trial[victim]["calls"]]
    if "KeyboardInterrupt" not in kinds:  # it came to the script
        yield from problems_of_passing(trial)
        return
    first = kinds.index("KeyboardInterrupt")
    others = [c for r, i, c in calls_of(trial) if i >= first and (r, i) != (victim, first)]
    if all(call["verdict"] == "right" for call in others):
        return  # it came when all was done
    # A rank that had not asked for anything yet goes on with its next call while the others are
    # in this one: they all see that they disagree, until one is at its script's end.
    apart = "|^The ranks disagree|has ended its script"
    yield from problems_of_broken(trial, first, interrupt_of(victim) + apart)


def problems_of_stall(trial):
    """What is wrong where one rank came too late."""
    # The first error is that of a rank that has waited, on the late rank too.
    first = rf"rank (?!{trial[0]['victim']}\b)\d+ on host \S+ has waited(.|\n)*EASYDDL_STALL_ABORT"
    yield from problems_of_broken(trial, trial[0]["at"], first)
    for rank, i, _ in calls_of(trial):
        call = trial[rank]["calls"][i]
        if i == trial[0]["at"] and call["verdict"] != "error":
            yield f"should raise, as a rank was late: {described(trial, rank, i)}"


def problems_of(trial):
    """What is wrong with what all ranks tell of one trial."""
    limit = SOON + (plan.STALL_ABORT if trial[0]["kind"] == "stall" else 0)
    for rank, i, call in calls_of(trial):
        if call["verdict"] == "wrong":
            yield f"WRONG DATA: {described(trial, rank, i)}"
        if call["seconds"] > limit:
            yield f"took too long: {described(trial, rank, i)}"
    judge = {"interrupt": problems_of_interrupt, "stall": problems_of_stall}
    yield from judge.get(trial[0]["kind"], problems_of_passing)(trial)
