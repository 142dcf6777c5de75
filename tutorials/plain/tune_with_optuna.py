"""Searches for the hyper-parameters of a classifier with Optuna, in one process."""

import argparse

import keras
import optuna
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH = 32  # the samples of all ranks in a step
SPACE = {
    "rate": optuna.distributions.FloatDistribution(0.003, 0.3, log=True),
    "momentum": optuna.distributions.CategoricalDistribution([0.0, 0.9]),
    "units": optuna.distributions.IntDistribution(16, 64, step=16),
}

parser = argparse.ArgumentParser(description="Search with Optuna.")
parser.add_argument("--trials", type=int, default=6)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--storage", help="URL of a database that keeps the study")
args = parser.parse_args()
if min(args.trials, args.epochs) < 1:
    parser.error("--trials and --epochs must be 1 or more")

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
x_train, x_test, y_train, y_test = train_test_split(
    images, labels, test_size=0.25, stratify=labels, random_state=0
)
held_out = x_train[-256:], y_train[-256:]  # to choose by
x_train, y_train = x_train[:1088], y_train[:1088]
batch_size = BATCH


def build(rate, momentum, units):
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(units, "relu"), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential([keras.layers.Input((64,)), *layers])
    model.compile(
        keras.optimizers.SGD(rate, momentum=momentum),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def train(model, callbacks):
    """Trains a model on all ranks. Returns its accuracy on `held_out`, the same on all ranks."""
    history = model.fit(
        x_train,
        y_train,
        batch_size=batch_size,
        epochs=args.epochs,
        shuffle=False,
        validation_data=held_out,
        callbacks=callbacks,
        verbose=0,
    )
    return history.history["val_accuracy"][-1]


class Pruner(keras.callbacks.Callback):
    """Ends a trial that Optuna prunes. If one rank ends an epoch so, all ranks stop after it."""

    def __init__(self, trial):
        super().__init__()
        self.trial, self.state = trial, optuna.trial.TrialState.COMPLETE

    def on_epoch_end(self, epoch, logs=None):
        self.trial.report(logs["val_accuracy"], epoch)
        if self.trial.should_prune():
            self.state = optuna.trial.TrialState.PRUNED
            self.model.stop_training = True


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=0),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    storage=args.storage,
    study_name="digits",
    load_if_exists=True,
)
scores = []
for _ in range(args.trials):
    trial = study.ask(SPACE)
    params, callbacks = trial.params, [Pruner(trial)]
    scores.append(train(build(**params), callbacks))
    (pruner,) = callbacks
    is_pruned = pruner.state == optuna.trial.TrialState.PRUNED
    study.tell(trial, None if is_pruned else scores[-1], pruner.state)

for trial in study.trials:
    found = ", ".join(f"{name} {value:.6g}" for name, value in trial.params.items())
    steps = len(trial.intermediate_values)
    value = trial.state.name if trial.value is None else f"{trial.value:.4f}"  # of a killed job
    print(f"trial {trial.number}: {found}: {value} after {steps} epochs")
params = study.best_params
model = build(**params)
scores.append(train(model, []))

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"Held-out accuracy: {accuracy:.4f}")
