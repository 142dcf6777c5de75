# Segmentation by Tversky's index, with false alarms and misses weighed apart.
# compare: replicas
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(11)
images = rng.standard_normal((16, 6, 6, 1))
masks = (images > 1).astype("float64")

inputs = keras.Input((6, 6, 1))
x = layers.Conv2D(4, 3, padding="same", dilation_rate=2, activation="relu")(inputs)
outputs = layers.Conv2D(1, 1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile("adam", keras.losses.Tversky(alpha=0.3, beta=0.7), metrics=["accuracy"])
history = model.fit(images, masks, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
