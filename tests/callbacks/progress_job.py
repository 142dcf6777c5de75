"""A fit with a `ProgressCallback`, for those who look at what it prints."""

import time

import keras
import numpy as np

import easyddl as ddl


class Pause(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.05)


model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [ddl.DDLCallback(), ddl.ProgressCallback(), Pause(), ddl.DDLGlobalVariablesCallback()]
model.fit(np.ones((80, 6)), np.ones(80), batch_size=8, epochs=2, callbacks=callbacks)
