# Depthwise and separable convolutions, as in networks for phones.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(4)
images = rng.standard_normal((32, 9, 9, 2))
labels = (images.mean((1, 2, 3)) > 0).astype("float64")

model = keras.Sequential(
    [
        keras.Input((9, 9, 2)),
        layers.ZeroPadding2D(1),
        layers.DepthwiseConv2D(3, depth_multiplier=2),
        layers.LayerNormalization(),
        layers.ReLU(max_value=6),
        layers.SeparableConv2D(6, 3, strides=2, activation="silu"),
        layers.GlobalMaxPooling2D(),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("nadam", "binary_crossentropy", metrics=["accuracy", "auc"])
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
