"""What easyddl needs of Keras's insides, and how attributes are replaced.

Only this package uses private names of Keras. Each `keras_....py` serves one noun: it lists the
names with the versions that have them, and offers functions with plain names to everyone else.
"""
