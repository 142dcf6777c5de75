# A train_step that gives two parts of a model to two optimizers in a list.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class TwoRates(keras.Model):
    def __init__(self):
        super().__init__()
        self.base = layers.Dense(6, activation="tanh")
        self.head = layers.Dense(1)
        self.parts = [keras.optimizers.SGD(0.01), keras.optimizers.Adam(0.05)]

    def call(self, x):
        return self.head(self.base(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        for optimizer, layer in zip(self.parts, (self.base, self.head), strict=True):
            variables = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.compute_metrics(x, y, y_pred)


rng = np.random.default_rng(123)
x = rng.standard_normal((32, 4))
y = np.sin(x[:, :1])

model = TwoRates()
model.compile(loss="mse", metrics=["mae"])
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
