# A head on a frozen base first, then all of it at a lower rate.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(13)
images = rng.standard_normal((32, 6, 6, 1))
labels = rng.integers(0, 2, (32, 1))

base = keras.Sequential(
    [keras.Input((6, 6, 1)), layers.Conv2D(4, 3, activation="relu"), layers.Flatten()], name="base"
)
base.trainable = False
inputs = keras.Input((6, 6, 1))
outputs = layers.Dense(1)(base(inputs, training=False))
model = keras.Model(inputs, outputs)
loss = keras.losses.BinaryCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["binary_accuracy"])
first = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)

base.trainable = True
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["binary_accuracy"])
second = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
history = [first, second]
