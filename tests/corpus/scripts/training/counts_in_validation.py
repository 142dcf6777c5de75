# Counts of a validation set that is whole, and of another one that is divided.
# before_fit: x_parts, y_parts = ddl.split_data(x_parts, y_parts, remainder="keep")
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(176)
x = rng.standard_normal((32, 5))
y = (x[:, :1] + x[:, 1:2] > 0).astype("float64")
x_val = rng.standard_normal((13, 5))
y_val = (x_val[:, :1] > 0).astype("float64")
x_parts = rng.standard_normal((21, 5))
y_parts = (x_parts[:, :1] > 0).astype("float64")

model = keras.Sequential(
    [keras.Input((5,)), layers.Dense(6, "tanh"), layers.Dense(1, "sigmoid")],
)
counts = [
    keras.metrics.TruePositives(name="hits"),
    keras.metrics.FalsePositives(name="alarms"),
    keras.metrics.FalseNegatives(name="misses"),
    keras.metrics.TrueNegatives(name="rest"),
    keras.metrics.Recall(),
]
names = [count.name for count in counts]
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=counts)

history = []
for held_out in [(x_val, y_val), (x_parts, y_parts), (x_val, y_val)]:
    fitted = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=held_out,
    )
    # On PyTorch the validation overwrites the counts of training, with Keras alone.
    history.append({name: fitted.history[f"val_{name}"] for name in ("loss", *names)})
