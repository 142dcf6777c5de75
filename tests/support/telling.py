"""What the ranks of a job print, for the test to read."""

import os


def tell(*words):
    # In one piece: the launcher would mix the ranks' words.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
