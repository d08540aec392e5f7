"""Learning: examples and their encoding, objectives, the one training loop, topics."""
