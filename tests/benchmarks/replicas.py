"""What `DDLCallback(check_replicas=N)` costs each time: mpirun -np 4 python replicas.py"""

import time

import keras
import numpy as np

import easyddl as ddl
from easyddl.training import replica_check


def main():
    for width in (8, 1000, 10000):
        model = keras.Sequential([keras.layers.Input((1000,)), keras.layers.Dense(width)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        ddl.broadcast_variables([*model.weights, *model.optimizer.variables])
        times = []
        for _ in range(15):
            ddl.barrier()
            start = time.perf_counter()
            replica_check.check(model, "here")
            times.append(time.perf_counter() - start)
        if ddl.is_root():
            print(f"{model.count_params():>9} parameters: {np.median(times) * 1e6:9.0f} us")


if __name__ == "__main__":
    main()
