# Masked convolutions predict each pixel from those before it.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class MaskedConv(layers.Layer):
    def __init__(self, filters, size, sees_itself):
        super().__init__()
        self.conv = layers.Conv2D(filters, size, padding="same")
        self.size, self.sees_itself = size, sees_itself

    def build(self, shape):
        self.conv.build(shape)
        mask = np.ones(self.conv.kernel.shape)
        middle = self.size // 2
        mask[middle, middle + self.sees_itself :] = 0
        mask[middle + 1 :] = 0
        self.mask = mask

    def call(self, x):
        kernel = self.conv.kernel * ops.convert_to_tensor(self.mask)
        return ops.relu(ops.conv(x, kernel, padding="same") + self.conv.bias)


rng = np.random.default_rng(112)
images = (rng.uniform(0, 1, (32, 6, 6, 1)) + np.eye(6)[:, :, None] > 0.8).astype("float64")

inputs = keras.Input((6, 6, 1))
x = MaskedConv(6, 3, False)(inputs)
x = layers.add([x, MaskedConv(6, 3, True)(x)])
outputs = layers.Conv2D(1, 1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
history = model.fit(images, images, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
