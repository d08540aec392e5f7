"""The query engine: answers from an index without torch. Weights and rows are mapped from their files, the encoder is an ONNX graph."""
