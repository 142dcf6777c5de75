# Users and films meet in a dot product, with biases, as in collaborative filtering.
import keras
import numpy as np
from keras import layers, ops

keras.config.set_floatx("float64")
BATCH = 8


class Recommender(keras.Model):
    def __init__(self, users, films, width):
        super().__init__()
        regularizer = keras.regularizers.L2(1e-3)
        self.users = layers.Embedding(users, width, embeddings_regularizer=regularizer)
        self.films = layers.Embedding(films, width, embeddings_regularizer=regularizer)
        self.user_bias = layers.Embedding(users, 1)
        self.film_bias = layers.Embedding(films, 1)

    def call(self, pairs):
        user, film = pairs[:, 0], pairs[:, 1]
        match = ops.sum(self.users(user) * self.films(film), axis=1, keepdims=True)
        return ops.sigmoid(match + self.user_bias(user) + self.film_bias(film))


rng = np.random.default_rng(51)
pairs = np.stack([rng.integers(0, 8, 32), rng.integers(0, 10, 32)], 1)
ratings = rng.uniform(0, 1, (32, 1))

model = Recommender(8, 10, 3)
model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
history = model.fit(pairs, ratings, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
