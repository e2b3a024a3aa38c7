"""Data sets for training with several rewards, in TRL's prompt format."""
