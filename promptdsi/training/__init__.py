"""Learning: batches, objectives, the one training loop, stand-ins for old queries, topics."""
