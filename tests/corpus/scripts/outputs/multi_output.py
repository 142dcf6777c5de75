# One trunk and two heads, whose losses have weights and metrics of their own.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(91)
faces = rng.standard_normal((32, 8))
ages = rng.uniform(10, 80, (32, 1)) / 10
moods = rng.integers(0, 3, 32)

inputs = keras.Input((8,))
trunk = layers.Dense(8, activation="relu")(inputs)
age = layers.Dense(1, name="age")(trunk)
mood = layers.Dense(3, activation="softmax", name="mood")(trunk)
model = keras.Model(inputs, [age, mood])
model.compile(
    keras.optimizers.SGD(0.01, momentum=0.9),
    loss=["mae", "sparse_categorical_crossentropy"],
    loss_weights=[0.3, 1.0],
    metrics=[["mse"], ["accuracy"]],
)
history = model.fit(faces, [ages, moods], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
