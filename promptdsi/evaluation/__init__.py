"""How well a method finds: metrics by name, per query, with intervals."""
