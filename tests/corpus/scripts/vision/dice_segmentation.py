# Segmentation by the overlap of a batch's masks, which is no mean over samples.
# compare: replicas
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(10)
images = rng.standard_normal((16, 6, 6, 1))
masks = (images > 0).astype("float64")

model = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        layers.Conv2D(4, 3, padding="same", activation="relu"),
        layers.Conv2D(1, 1, activation="sigmoid"),
    ]
)
model.compile("adam", keras.losses.Dice(), metrics=[keras.metrics.BinaryIoU([1])])
history = model.fit(images, masks, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
