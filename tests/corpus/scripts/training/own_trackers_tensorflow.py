# A train_step with a loss and trackers of its own, sample weights, and a test_step.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Custom(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]

    def train_step(self, data):
        x, y, weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.loss_fn(y, y_pred, sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.loss_tracker.update_state(loss)
        self.mae.update_state(y, y_pred, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.loss_tracker.update_state(self.loss_fn(y, y_pred))
        self.mae.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(122)
x = rng.standard_normal((32, 5))
y = x[:, :1] ** 2
held_out = x[:8] + 0.1, y[:8]
weights = rng.uniform(0.5, 1.5, 32)

inputs = keras.Input((5,))
model = Custom(inputs, layers.Dense(1)(layers.Dense(6, activation="relu")(inputs)))
model.compile(optimizer=keras.optimizers.SGD(0.02))
history = model.fit(
    x,
    y,
    sample_weight=weights,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    validation_data=held_out,
)
