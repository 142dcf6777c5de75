# A siamese network takes triples whole, in a stateless train_step.
# backend: jax
import jax
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(71)
anchors = rng.standard_normal((32, 6))
positives = anchors + 0.1 * rng.standard_normal((32, 6))
negatives = rng.standard_normal((32, 6))


class Siamese(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, triple):
        anchor, positive, negative = [self.embed(part) for part in triple]
        near = ops.sum(ops.square(anchor - positive), axis=1)
        return near - ops.sum(ops.square(anchor - negative), axis=1)

    def loss_of(self, trainable, non_trainable, triple):
        margin, non_trainable = self.stateless_call(trainable, non_trainable, triple)
        return ops.mean(ops.maximum(margin + 0.5, 0.0)), non_trainable

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        (triple,) = data
        function = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, non_trainable), gradients = function(trainable, non_trainable, triple)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        metrics = self.loss_tracker.stateless_update_state(metrics, loss)
        logs = {"loss": self.loss_tracker.stateless_result(metrics)}
        return logs, (trainable, non_trainable, optimizer, metrics)

    @property
    def metrics(self):
        return [self.loss_tracker]


model = Siamese()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(
    [anchors, positives, negatives], batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
