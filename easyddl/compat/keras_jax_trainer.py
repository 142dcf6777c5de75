"""The state of Keras's trainer on JAX.

While an epoch lasts, the values of all variables are in a state that the steps pass on. The trainer
keeps the last one, and gives it to the variables when somebody asks for the model.
"""

from easyddl.compat.names import Name

NAMES = (
    Name(
        "keras.Model",
        "_jax_state",
        "the values of variables are lost where a rank has no batch, or others are given to them",
        is_set=True,
        backend="jax",
    ),
    Name(
        "keras.Model",
        "_jax_state_synced",
        "variables keep old values after an epoch that had no batch",
        is_set=True,
        backend="jax",
    ),
    Name(
        "keras.Model",
        "_get_jax_state",
        "the first step cannot start from the root's variables",
        backend="jax",
        takes=("trainable_variables", "purge_model_variables"),
    ),
    Name(
        "keras.Model",
        "jax_state_sync",
        "variables keep the values that they had before the epoch",
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
_PARTS_OF_TEST = ("trainable_variables", "non_trainable_variables", "metrics_variables")


def hold(model, state):
    """Has the trainer keep a state, which the variables do not have yet.

    Args:
        model: A Keras model in a fit or an evaluation.
        state: Tuple of lists of arrays: of the four parts of a training step's state, or the three
            of a test step's.
    """
    names = _PARTS if len(state) == len(_PARTS) else _PARTS_OF_TEST
    model._jax_state = dict(zip(names, state, strict=True))
    model._jax_state_synced = False


def sync(model):
    """Gives the values of the state that the trainer keeps to the variables."""
    model.jax_state_sync()


def take_state(model):
    """The state of the variables, which hold none from then on; the trainer keeps it."""
    state = _state(model, purge_model_variables=True)
    model._jax_state_synced = False
    return state


def copy_state(model):
    """The state of the variables."""
    return _state(model)


def _state(model, **options):
    return model._get_jax_state(**dict.fromkeys(_PARTS, True), **options)


def arrays_of(model):
    """The arrays that the last step of a model has computed."""
    state = getattr(model, "_jax_state", None)
    if state and not model._jax_state_synced:
        return state
    return [v._value for v in model.variables if v._value is not None]
