"""The model: backbones, the encoder's layer loop with prefixes, rows, prompt strategies, and the one forward pass."""
