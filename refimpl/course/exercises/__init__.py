"""Exercises: what there is, how stubs are made, how a learner's function is checked and what is said about it."""
