"""Other engines, each behind a small program that runs one batch and prints its speed."""
