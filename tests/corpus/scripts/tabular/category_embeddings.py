# Embeddings of categories beside numbers, for the price of a thing.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(42)
data = {
    "town": rng.integers(0, 6, 32),
    "month": rng.integers(0, 12, 32),
    "area": rng.uniform(20, 200, 32),
}
prices = 3 * data["area"] + 50 * data["town"]

inputs, parts = {}, []
for name, count in (("town", 6), ("month", 12)):
    inputs[name] = keras.Input((), name=name, dtype="int32")
    parts.append(layers.Embedding(count, 3, name=f"{name}_embedding")(inputs[name]))
inputs["area"] = keras.Input((1,), name="area")
parts.append(layers.Rescaling(0.01)(inputs["area"]))
x = layers.Dense(8, activation="leaky_relu")(layers.concatenate(parts))
model = keras.Model(inputs, layers.Dense(1)(x))
model.compile(
    keras.optimizers.SGD(1e-3),
    keras.losses.MeanSquaredLogarithmicError(),
    metrics=[keras.metrics.MeanAbsolutePercentageError()],
)
history = model.fit(data, prices, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
