# A loop of train_on_batch, and test_on_batch after each epoch.
# optimizer: distributed
# before_fit: ddl.broadcast_variables(model.weights)
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(170)
x = rng.standard_normal((32, 5))
y = np.sin(x[:, :2])
x_test = rng.standard_normal((12, 5))
y_test = np.sin(x_test[:, :2])

normalize = layers.Normalization()
normalize.adapt(x)
model = keras.Sequential(
    [keras.Input((5,)), normalize, layers.Dense(6, "tanh"), layers.Dense(2)],
)
model.compile(keras.optimizers.Adam(0.02, clipnorm=0.5), "mse", metrics=["mae"])

history = {"test_loss": [], "test_mae": []}
for _ in range(3):
    for start in range(0, len(x), BATCH):
        model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])
    model.reset_metrics()
    loss, mae = model.test_on_batch(x_test, y_test)
    history["test_loss"].append(loss)
    history["test_mae"].append(mae)
    model.reset_metrics()
