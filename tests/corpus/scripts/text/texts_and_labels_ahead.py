# Lists of texts and of labels become numbers ahead, by vocabularies of all of them.
import keras
import numpy as np
from keras import layers

keras.config.set_floatx("float64")
BATCH = 8

rng = np.random.default_rng(182)
subjects = {
    "sport": ["goal", "match", "coach"],
    "science": ["atom", "cell", "orbit"],
    "food": ["soup", "bread", "salt"],
}
names = rng.choice(list(subjects), 32).tolist()
texts = [f"A {a}, and the {b}!" for a, b in (rng.choice(subjects[name], 2) for name in names)]

vectorize = layers.TextVectorization(output_sequence_length=5)
vectorize.adapt(texts)
lookup = layers.StringLookup(num_oov_indices=0)
lookup.adapt(names)
tokens = keras.ops.convert_to_numpy(vectorize(texts))
labels = keras.ops.convert_to_numpy(lookup(names))
new = keras.ops.convert_to_numpy(vectorize(["the soup, and salt", "an orbit"]))

model = keras.Sequential(
    [
        keras.Input((5,), dtype="int32"),
        layers.Embedding(vectorize.vocabulary_size(), 4),
        layers.Conv1D(6, 2, activation="tanh"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(lookup.vocabulary_size(), activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.03), "sparse_categorical_crossentropy", metrics=["accuracy"])
fitted = model.fit(tokens, labels, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
history = [fitted, {"prediction": model.predict(new, verbose=0)}]
