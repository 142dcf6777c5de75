# Mixed precision with a scaled loss: only that ranks agree is promised to the last digit.
# compare: replicas
import keras
import numpy as np
from keras import layers

keras.config.set_dtype_policy("mixed_float16")
BATCH = 8

rng = np.random.default_rng(153)
x = rng.standard_normal((32, 6)).astype("float32")
y = x[:, :1] * x[:, 1:2]

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(6, "tanh"), layers.Dense(1, dtype="float32")]
)
model.compile("adam", "mse")
history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
