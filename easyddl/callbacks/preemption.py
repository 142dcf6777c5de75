"""Preemption: ends a fit on all ranks after a signal, for example of a scheduler."""

import signal

from easyddl.collectives import objects
from easyddl.runtime import console, job_exit, notices, termination, world
from easyddl.training.fit import fit_context
from easyddl.training.fit.callback_order import FitEvents


class Preemption(FitEvents):
    """Ends a training with backups after a signal on any rank.

    A rank that has received a signal asks all ranks to stop, with the control word of the next
    step. So all ranks stop after the same step, and make a backup there. This costs nothing as long
    as no rank has received a signal.

    Args:
        signals: Sequence of names of signals.
        save: Function without arguments that makes a backup after the step that has just ended. It
            is collective, and calls `end_if_asked`.
        steps: Function without arguments that returns the number of steps of this rank in this
            epoch; `None` if they are still being skipped after a restart.
    """

    def __init__(self, signals, save, steps):
        self._numbers = termination.numbers_of(signals)
        self._save, self._steps = save, steps
        self._signals = termination.TerminationSignals(self._numbers)

    @property
    def received(self):
        """The number of the signal that this rank has received; 0 for none."""
        return self._signals.received

    def begin(self, model):
        """Begins to record the signals, until the fit ends. Called when training begins."""
        fit = fit_context.current(model)
        self._signals = termination.TerminationSignals(self._numbers)
        if fit is None:
            return
        _tell_ignored([n.name for n in self._numbers if signal.getsignal(n) == signal.SIG_IGN])
        self._signals.watch()
        fit.at_end.callback(self._signals.stop_watching)
        if fit.join is not None and world.size() > 1:
            fit.listeners.append(self)

    def after_step(self, model):
        """Asks all ranks to stop if this rank has received a signal. Called after each step."""
        if not self.received:
            return
        if world.size() == 1:
            self._save()
            return
        fit = fit_context.current(model)
        # There is no backup in a step in which some ranks have no batch. Ask in the next epoch.
        if fit is not None and fit.join is not None and not fit.join.state.uneven:
            fit.join.ask_to_stop()

    def after_steps(self, fit):
        """Ends the job if a signal has stopped the steps."""
        if not fit.model.stop_training:
            return
        steps = self._steps()
        received, all_steps = zip(*objects.allgather_object((self.received, steps)), strict=True)
        if any(received) and steps is not None and len(set(all_steps)) == 1:
            self._save()
        self.end_if_asked(received, "The last backup is kept")

    def end_training(self):
        """Restores the handlers, and ends the job if any rank has received a signal. Collective."""
        self._signals.stop_watching()
        received = objects.allgather_object(self.received)
        self.end_if_asked(received, "The last backup is kept")

    def end_if_asked(self, received, saved):
        """Ends the job if any rank has received a signal. Called on all ranks together.

        Args:
            received: Sequence of the signals of all ranks, by rank; 0 for none.
            saved: String. The sentence of the message on the backup.

        Raises:
            SystemExit: If any rank has received a signal. As in a shell, the status is 128 plus the
                number of the signal.
        """
        number = max(received)
        if number == 0:
            return
        status = 128 + number
        if world.is_root():
            ranks = ", ".join(str(rank) for rank, each in enumerate(received) if each)
            console.say(
                f"received {signal.Signals(number).name} on rank {ranks}. {saved}. Start the same "
                f"script again to resume. All ranks end with status {status}."
            )
        job_exit.end_together()
        raise SystemExit(status)


def _tell_ignored(names):
    """Warns of signals that this process ignores, which it may have inherited."""
    if names:
        notices.tell_once(
            ("ignored signals", *names),
            f"warning: this process ignores {', '.join(names)}, which therefore causes no backup. "
            f"The shell script that started it may contain `trap '' {names[0][3:]}`.",
        )
