"""The state of Keras's trainer on JAX.

During an epoch the values of all variables are in a state, which each step takes and returns. The
trainer keeps the last state, and assigns it to the variables when `callback.model` is read.
"""

from easyddl.compat.names import Name, several

NAMES = (
    *several(
        "keras.Model",
        {
            "_jax_state": "variables lose their values if a rank has no batch",
            "_jax_state_synced": "variables keep old values after an epoch that had no batch",
        },
        is_set=True,
        backend="jax",
    ),
    *several(
        "keras.Model",
        {
            "_get_jax_state(trainable_variables, purge_model_variables)": "the first step cannot "
            "start from the root's variables",
            "jax_state_sync": "variables keep the values that they had before the epoch",
        },
        backend="jax",
    ),
    Name(
        "keras.Variable",
        "_value",
        "the time of a step is measured before the step is done",
        is_set=True,
        backend="jax",
    ),
)

_PARTS = ("trainable_variables", "non_trainable_variables", "optimizer_variables",
          "metrics_variables")  # fmt: skip
_ALL_PARTS = dict.fromkeys(_PARTS, True)
_PARTS_OF_TEST = ("trainable_variables", "non_trainable_variables", "metrics_variables")


def hold(model, state):
    """Makes the trainer keep a state that has not been assigned to the variables.

    Args:
        model: A Keras model in a fit or an evaluation.
        state: Tuple of lists of arrays: the four parts of the state of a training step, or the
            three parts of the state of a test step.
    """
    names = _PARTS if len(state) == len(_PARTS) else _PARTS_OF_TEST
    model._jax_state = dict(zip(names, state, strict=True))
    model._jax_state_synced = False


def sync(model):
    """Assigns the state that the trainer keeps to the variables."""
    model.jax_state_sync()


def take_state(model):
    """Moves the state out of the variables, which then have no values, and returns it."""
    state = model._get_jax_state(**_ALL_PARTS, purge_model_variables=True)
    model._jax_state_synced = False
    return state


def copy_state(model):
    """Returns the state of the variables."""
    return model._get_jax_state(**_ALL_PARTS)


def arrays_of(model):
    """Returns the arrays that the last step of a model has computed."""
    state = getattr(model, "_jax_state", None)
    if state and not model._jax_state_synced:
        return state
    return [v._value for v in model.variables if v._value is not None]
