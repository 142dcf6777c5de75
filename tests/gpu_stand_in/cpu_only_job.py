"""A fit on CPUs, which opens neither NCCL nor the CUDA driver."""

import os
import pathlib

import keras
import numpy as np

import easyddl as ddl

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.random.default_rng(ddl.rank()).standard_normal((8, 3))
callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=callbacks)

# The driver and NCCL that easyddl would open are the stand-ins.
opened = pathlib.Path("/proc/self/maps").read_text()
assert "_core" in opened
assert os.environ["EASYDDL_CUDA_PATH"] not in opened
assert os.environ["EASYDDL_NCCL_PATH"] not in opened
