# A WGAN with a penalty on gradients, two critic updates a step; all noise is data.
# backend: tensorflow
import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8
CRITIC_UPDATES = 2


class Wgan(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((2,)), layers.Dense(6, "tanh"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(6, "tanh"), layers.Dense(2)])

    def compile(self, critic_optimizer, maker_optimizer):
        super().compile()
        self.critic_optimizer, self.maker_optimizer = critic_optimizer, maker_optimizer

    def penalty(self, real, fake, mix):
        between = real + mix * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.critic(between, training=True)
        slopes = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(scores, between)), axis=1) + 1e-12)
        return tf.reduce_mean(tf.square(slopes - 1))

    def train_step(self, data):
        real, (noise, mix) = data
        for _ in range(CRITIC_UPDATES):
            with tf.GradientTape() as tape:
                fake = self.maker(noise, training=True)
                critic_loss = tf.reduce_mean(self.critic(fake) - self.critic(real))
                critic_loss += 10 * self.penalty(real, fake, mix)
            variables = self.critic.trainable_variables
            self.critic_optimizer.apply_gradients(
                zip(tape.gradient(critic_loss, variables), variables, strict=True)
            )
        with tf.GradientTape() as tape:
            maker_loss = -tf.reduce_mean(self.critic(self.maker(noise, training=True)))
        variables = self.maker.trainable_variables
        self.maker_optimizer.apply_gradients(
            zip(tape.gradient(maker_loss, variables), variables, strict=True)
        )
        return {"critic_loss": critic_loss, "maker_loss": maker_loss}


rng = np.random.default_rng(104)
points = rng.normal(1, 0.5, (32, 2))
noises = rng.standard_normal((32, 3))
mixes = rng.uniform(0, 1, (32, 1))

model = Wgan()
model.compile(
    critic_optimizer=keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9),
    maker_optimizer=keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9),
)
history = model.fit(points, (noises, mixes), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
