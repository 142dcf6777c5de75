"""The private parts of Keras that easyddl uses, and the functions that replace attributes.

Only this package uses private names of Keras. Each `keras_....py` covers one subject. It lists the
private names with the versions of Keras that have them, and wraps them in functions for the rest
of easyddl.
"""
