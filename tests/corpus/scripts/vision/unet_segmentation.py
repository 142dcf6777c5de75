# A U-shaped network that labels every pixel, with skips between its halves.
# backend: tensorflow jax
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 4

rng = np.random.default_rng(3)
images = rng.standard_normal((16, 8, 8, 1))
masks = (images > 0.3).astype("int64") + (images > 1.2)

inputs = keras.Input((8, 8, 1))
skips, x = [], inputs
for filters in (4, 6):
    x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    skips.append(x)
    x = layers.MaxPooling2D(2)(x)
x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
for filters in (6, 4):
    x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.concatenate([x, skips.pop()])
outputs = layers.Conv2D(3, 1, activation="softmax")(x)

model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.RMSprop(1e-2),
    "sparse_categorical_crossentropy",
    metrics=["accuracy", keras.metrics.MeanIoU(3, sparse_y_pred=False)],
)
history = model.fit(images, masks, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
