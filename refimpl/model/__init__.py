"""The single-device truth: every operator as obvious as it can be, with its backward, and no communicator in sight."""
