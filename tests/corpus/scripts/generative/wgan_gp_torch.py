# A WGAN with a penalty on gradients on PyTorch; all noise is data.
# backend: torch
import keras
import numpy as np
import torch
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8


class Wgan(keras.Model):
    def __init__(self):
        super().__init__()
        self.critic = keras.Sequential(
            [keras.Input((2,)), layers.Dense(6, "tanh"), layers.Dense(1)]
        )
        self.maker = keras.Sequential([keras.Input((3,)), layers.Dense(6, "tanh"), layers.Dense(2)])
        self.built = True

    def compile(self, critic_optimizer, maker_optimizer):
        super().compile()
        self.critic_optimizer, self.maker_optimizer = critic_optimizer, maker_optimizer

    def penalty(self, real, fake, mix):
        between = (real + mix * (fake - real)).requires_grad_(True)
        scores = self.critic(between, training=True)
        (slopes,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
        return ((slopes.square().sum(1) + 1e-12).sqrt() - 1).square().mean()

    def train_step(self, data):
        real, (noise, mix) = data
        for _ in range(2):
            self.zero_grad()
            fake = self.maker(noise, training=True).detach()
            critic_loss = (self.critic(fake) - self.critic(real)).mean()
            critic_loss = critic_loss + 10 * self.penalty(real, fake, mix)
            critic_loss.backward()
            variables = self.critic.trainable_weights
            with torch.no_grad():
                self.critic_optimizer.apply([v.value.grad for v in variables], variables)
        self.zero_grad()
        maker_loss = -self.critic(self.maker(noise, training=True)).mean()
        maker_loss.backward()
        variables = self.maker.trainable_weights
        with torch.no_grad():
            self.maker_optimizer.apply([v.value.grad for v in variables], variables)
        return {"critic_loss": critic_loss.detach(), "maker_loss": maker_loss.detach()}


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
