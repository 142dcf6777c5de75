# A GAN that draws its noise in the step, as most do.
# backend: tensorflow
# compare: replicas
import keras
import numpy as np
import tensorflow as tf
from keras import layers

BATCH = 8


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((2,)), layers.Dense(6, "relu"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(6, "relu"), layers.Dense(2)])
        self.seeds = keras.random.SeedGenerator(1)

    def compile(self, **optimizers):
        super().compile()
        self.critic_optimizer, self.maker_optimizer = optimizers["critic"], optimizers["maker"]

    def train_step(self, real):
        noise = keras.random.normal((tf.shape(real)[0], 3), seed=self.seeds)
        with tf.GradientTape() as tape:
            scores = tf.nn.softplus(-self.critic(real)) + tf.nn.softplus(
                self.critic(self.maker(noise))
            )
            critic_loss = tf.reduce_mean(scores)
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(critic_loss, variables), variables)
        with tf.GradientTape() as tape:
            maker_loss = tf.reduce_mean(tf.nn.softplus(-self.critic(self.maker(noise))))
        variables = self.maker.trainable_variables
        self.maker_optimizer.apply(tape.gradient(maker_loss, variables), variables)
        return {"critic_loss": critic_loss, "maker_loss": maker_loss}


rng = np.random.default_rng(103)
points = tf.data.Dataset.from_tensor_slices(rng.normal(1, 0.3, (32, 2)).astype("float32"))
points = points.batch(BATCH)

model = Gan()
model.compile(critic=keras.optimizers.RMSprop(0.01), maker=keras.optimizers.RMSprop(0.01))
history = model.fit(points, epochs=2, verbose=0)
