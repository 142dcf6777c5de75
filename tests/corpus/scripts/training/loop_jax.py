# A training loop from scratch: a step without side effects, which JAX compiles.
# backend: jax
# optimizer: distributed
# before_fit: ddl.broadcast_variables(model.weights)
import jax
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(173)
x = rng.standard_normal((32, 5))
y = np.tanh(x[:, :2])

model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "tanh"), layers.Dense(2)])
optimizer = keras.optimizers.RMSprop(0.01, momentum=0.5)
optimizer.build(model.trainable_variables)
loss_fn = keras.losses.MeanSquaredError()


def loss_of(trainable, non_trainable, x, y):
    y_pred, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
    return loss_fn(y, y_pred), non_trainable


@jax.jit
def train_step(state, x, y):
    trainable, non_trainable, slots = state
    function = jax.value_and_grad(loss_of, has_aux=True)
    (_, non_trainable), gradients = function(trainable, non_trainable, x, y)
    trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
    return trainable, non_trainable, slots


history = {"prediction": []}
for _ in range(3):
    kept = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state = tuple([variable.value for variable in variables] for variables in kept)
    for start in range(0, len(x), BATCH):
        state = train_step(state, x[start : start + BATCH], y[start : start + BATCH])
    for variables, found in zip(kept, state, strict=True):
        for variable, value in zip(variables, found, strict=True):
            variable.assign(value)
    history["prediction"].append(model.predict(np.eye(5), verbose=0))
