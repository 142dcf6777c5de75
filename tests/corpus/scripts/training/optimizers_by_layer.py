# One optimizer of Keras for the matrices and another one for the rest.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(155)
x = rng.standard_normal((32, 6))
labels = x[:, :3].argmax(1)

model = keras.Sequential([keras.Input((6,)), layers.Dense(6, "tanh"), layers.Dense(3)])
model.compile(
    keras.optimizers.Muon(0.02, exclude_layers=["dense_1"]),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(x, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
