# Means and variances are computed ahead, and given to a layer for each of several inputs.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(180)
table = {
    "rooms": rng.integers(1, 9, 32).astype("float64"),
    "area": rng.normal(80, 25, 32),
    "place": rng.standard_normal((32, 2)) * [3, 0.1] + [50, 8],
    "kind": rng.integers(0, 3, 32),
}
price = table["area"] * 3 + table["rooms"] * 10 + rng.standard_normal(32)
weights = np.where(table["kind"] == 0, 2.0, 0.5)
held_out = {name: column[:9] + 0 for name, column in table.items()}, price[:9] + 1, weights[:9] + 0

inputs, features = {}, []
for name in ("rooms", "area", "place"):
    column = table[name].reshape(32, -1)
    inputs[name] = keras.Input((column.shape[1],), name=name)
    normalize = layers.Normalization(mean=column.mean(0), variance=column.var(0))
    features.append(normalize(inputs[name]))
inputs["kind"] = keras.Input((1,), name="kind", dtype="int32")
features.append(layers.CategoryEncoding(3, output_mode="one_hot")(inputs["kind"]))

x = layers.Dense(8, activation="tanh")(layers.concatenate(features))
scale = layers.Normalization(mean=price.mean(), variance=price.var(), invert=True)
model = keras.Model(inputs, scale(layers.Dense(1)(x)))
model.compile(keras.optimizers.Adam(0.02), "mae", weighted_metrics=["mse"])
history = model.fit(
    table,
    price,
    sample_weight=weights,
    batch_size=BATCH,
    epochs=2,
    shuffle=False,
    verbose=0,
    validation_data=held_out,
)
