"""The variables that a training step uses although the model does not track them.

They may be globals of a script that a loss function reads. Nothing broadcasts them, so each rank
has its own values, and the ranks' losses differ.
"""

import functools

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import objects
from easyddl.collectives.variables import checksum
from easyddl.data.kinds import is_a
from easyddl.runtime import console, notices
from easyddl.training import model_state


def watch(fit):
    """Warns after the first epoch of a fit if such variables differ between the ranks.

    Call it in a callback's `set_model`, because Keras compiles the step after that.

    Args:
        fit: `FitContext`.
    """
    if fit.step.has_compared_others:
        return
    used = {}
    has_run = False

    def noting(train_step):
        @functools.wraps(train_step)
        def step(*arguments):
            nonlocal has_run
            if has_run:
                return train_step(*arguments)
            note = functools.partial(_note, used)
            with backends.require().noting_used_variables(note):
                result = train_step(*arguments)
            has_run = True
            return result

        return step

    def compare_once():
        if not fit.step.has_compared_others:
            fit.step.has_compared_others = True
            _compare(_untracked(fit.model, used.values()))
            used.clear()

    fit.wrap_train_step(noting)
    fit.on_steps_end(compare_once)


def _note(used, variable):
    used[id(variable)] = variable


def _untracked(model, used):
    """Returns the used variables that belong neither to the model nor to its optimizers."""
    known = [*model.variables, *model_state.all_variables(model)]
    ids = {id(each) for variable in known for each in (variable, variable.value)}
    if is_a(model, "torch", "Module"):
        ids.update(map(id, model.parameters()))
    return [each for each in used if id(each) not in ids]


def _compare(untracked):
    values = [keras.ops.convert_to_numpy(each) for each in untracked]
    mine = [
        (_name_of(variable), value.shape, checksum(np.array(value)))
        for variable, value in zip(untracked, values, strict=True)
    ]
    by_rank = objects.allgather_object(mine)
    if len({len(each) for each in by_rank}) > 1:
        return
    differing = []
    for name_shape, *others in zip(*by_rank, strict=True):
        ranks = [rank + 1 for rank, other in enumerate(others) if other != name_shape]
        if ranks:
            differing.append(f"{name_shape[0]} of shape {name_shape[1]} on {console.ranks(ranks)}")
    if differing:
        notices.tell(
            "warning: the steps of model.fit() use variables that the model does not track. "
            "Nothing broadcasts them, and the ranks have different values. Create them by "
            "add_weight() of a layer or of the model, or pass them to ddl.broadcast_variables() "
            f"before fit(). Received: {console.first(differing)}, with other "
            "values than on rank 0"
        )


def _name_of(variable):
    name = getattr(variable, "path", None) or getattr(variable, "name", None)
    return f"{type(variable).__name__} {name}" if name else type(variable).__name__
