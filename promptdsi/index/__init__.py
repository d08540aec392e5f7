"""The durable index: a folder of generations, each immutable and checksummed, that learns, forgets and can prove it."""
