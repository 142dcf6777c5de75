"""What easyddl needs of Keras's insides."""
