# A model is saved, loaded and trained on; its weights are saved alone, and loaded elsewhere.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


@keras.saving.register_keras_serializable("saved_model")
class Scale(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


def new_model(normalize):
    return keras.Sequential(
        [keras.Input((5,)), normalize, Scale(), layers.Dense(6, "tanh"), layers.Dense(2)]
    )


rng = np.random.default_rng(175)
x = rng.normal(3, 2, (32, 5))
y = np.cos(x[:, :2])
x_test = rng.normal(3, 2, (7, 5))

normalize = layers.Normalization()
normalize.adapt(x)
model = new_model(normalize)
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
first = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
model.save("model.keras")

loaded = keras.saving.load_model("model.keras")
before = loaded.predict(x_test, verbose=0)
second = loaded.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
loaded.save_weights("last.weights.h5")

restored = new_model(layers.Normalization())
restored.load_weights("last.weights.h5")
after = restored.predict(x_test, verbose=0)

models = [model, loaded, restored]
history = [first, second, {"before": before, "after": after}]
