# A train_step with a gradient tape that Keras's own loss and metrics go through.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Custom(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(121)
x = rng.standard_normal((32, 5))
y = x[:, :2] @ rng.standard_normal((2, 1))

inputs = keras.Input((5,))
model = Custom(inputs, layers.Dense(1)(layers.Dense(6, activation="tanh")(inputs)))
model.compile("adam", "mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
