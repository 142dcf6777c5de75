# A conditional GAN whose networks and optimizers lie in dicts.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(2)])

    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers

    def call(self, inputs):
        noise, kind = inputs
        return self.maker(tf.concat([noise, kind], 1))

    def train_step(self, data):
        (real, noise, kind), _ = data
        losses = {}
        with tf.GradientTape(persistent=True) as tape:
            fake = self.maker(tf.concat([noise, kind], 1))
            real_score = self.critic(tf.concat([real, kind], 1))
            fake_score = self.critic(tf.concat([fake, kind], 1))
            losses["critic"] = tf.reduce_mean(tf.square(real_score - 1) + tf.square(fake_score))
            losses["maker"] = tf.reduce_mean(tf.square(fake_score - 1))
        for name, network in (("critic", self.critic), ("maker", self.maker)):
            variables = network.trainable_variables
            gradients = tape.gradient(losses[name], variables)
            self.optimizers[name].apply_gradients(zip(gradients, variables, strict=True))
        return losses


rng = np.random.default_rng(102)
kinds = np.eye(2)[np.arange(32) % 3 // 2]
points = kinds * 2 + 0.2 * rng.standard_normal((32, 2))
noises = rng.standard_normal((32, 3))
unused = np.zeros(32)

model = Gan()
model.compile({"critic": keras.optimizers.Adam(0.02), "maker": keras.optimizers.SGD(0.1)})
history = model.fit(
    (points, noises, kinds), unused, batch_size=BATCH, epochs=2, shuffle=False, verbose=0
)
