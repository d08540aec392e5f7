"""The encoder's layers as ONNX graphs: `run_layer` of `model/path.py` recorded as nodes, for onnxruntime to run.

Letters: n tokens of all queries, B queries, T tokens of the longest, D width, H heads, P prefix rows per side. Everything but attention
works on the n real tokens, packed one after the other, so no product is spent on padding. For attention they are laid out as (B, T),
and packed again after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.model.config import ACTIVATIONS, EncoderConfig
from promptdsi.model.path import cores, run_layer

Array = NDArray[Any]
OPSET, CONTRIB, IR = 20, "com.microsoft", 10  # ir version: the newest that onnxruntime 1.18 reads
LARGEST_WEIGHT = 63  # of int8 weights: seven bits, because without VNNI the sum of two products of whole bytes overflows 16 bits
SIDES = ("query", "key", "value")  # of the joint projection


class Session:
    """An onnxruntime session and the names of its inputs. `threads` is how many one run may use (default: one per core)."""

    def __init__(self, graph: bytes, threads: int | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or cores()
        # Threads that spin between the products of a query save a fifth of its time; between queries they would take a core from others.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors have no common base: the weights do not fit the graph
            raise ValueError(str(error)) from error
        self._run, self.inputs = session.run, [entry.name for entry in session.get_inputs()]

    def run(self, outputs: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
        try:
            return self._run(outputs, inputs)  # type: ignore[no-any-return]
        except Exception as error:  # as above: the inputs do not fit the weights
            raise ValueError(str(error)) from error


class GraphPart(NamedTuple):
    """What a graph computes: layers `first` to `last`, and before them the norm of the embeddings where `embeds`.

    Layers in `prefixed` take a prefix, which goes through their projections where `project`; with `first_only` the last layer computes
    each query's first token alone.
    """

    first: int
    last: int
    embeds: bool = False
    prefixed: tuple[int, ...] = ()
    project: bool = False
    first_only: bool = False


def build_graph(config: EncoderConfig, weights: Mapping[str, Array], part: GraphPart, *, int8: bool = False) -> bytes:
    """The graph with its weights, serialized for onnxruntime.

    Inputs: `words` and `positions` (n, D) where the graph embeds, `states` (n, D) otherwise; `layout` (B, T), the token at each position;
    `packed` (n,), the position of each token; `bias`, what is added to attention scores (…, T, T); `prefix_bias` (…, T, P + T) and
    `prefix_K` (B, 2, P, D) where layer K takes a prefix; `first_tokens` (B,). Output: `out` (n or B, D).
    """
    return GraphBuilder(config, weights, int8).build(part)


class GraphBuilder:
    """Records the operations of `run_layer` as nodes; a "tensor" here is the name of a node's output."""

    def __init__(self, config: EncoderConfig, weights: Mapping[str, Array], int8: bool) -> None:
        self.config, self.weights, self.int8 = config, weights, int8
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.layer, self.bias = "", "bias"  # of the layer that is being recorded

    def build(self, part: GraphPart) -> bytes:
        from onnx import TensorProto, helper

        states = self.add_norm("norm", "positions", "words") if part.embeds else "states"
        for number in range(part.first, part.last + 1):
            prefix = f"prefix_{number}" if number in part.prefixed else None
            self.layer, self.bias = f"layers.{number - 1}.", "prefix_bias" if prefix else "bias"
            first_only = part.first_only and number == part.last
            states = run_layer(self, states, prefix=prefix, project=part.project, first_only=first_only)
        self.nodes[-1].output[0] = "out"
        shapes = self._input_shapes()
        names = list(dict.fromkeys(name for node in self.nodes for name in node.input if name in shapes or name.startswith("prefix_")))
        shapes |= {f"prefix_{number}": ("B", 2, "P", self.config.width) for number in part.prefixed}
        kinds = dict.fromkeys(("layout", "packed", "first_tokens"), TensorProto.INT64)
        graph = helper.make_graph(
            self.nodes,
            "layers",
            [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shapes[name]) for name in names],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["m", self.config.width])],
            list(self.constants.values()),
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR).SerializeToString()  # type: ignore[no-any-return]

    def _input_shapes(self) -> dict[str, tuple[str | int, ...]]:
        tokens: tuple[str | int, ...] = ("n", self.config.width)
        shapes: dict[str, tuple[str | int, ...]] = {"words": tokens, "positions": tokens, "states": tokens, "layout": ("B", "T")}
        shapes |= {"packed": ("n",), "first_tokens": ("B",)}
        return shapes | {"bias": ("b", "h", "q", "T"), "prefix_bias": ("pb", "ph", "pq", "S")}

    # The operations of `run_layer` ----------------------------------------------------------------------------------------

    def linear(self, name: str, states: str) -> str:
        name = self.layer + name
        weight = self.weights[f"{name}.weight"]
        offset = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        if not self.int8:
            return self.op("Gemm", [states, self.constant(name, weight), offset], transB=1)
        scale = np.maximum(np.abs(weight).max(1), 1e-12).astype(np.float32) / LARGEST_WEIGHT  # one per output
        integers = np.ascontiguousarray(np.rint(weight / scale[:, None]).astype(np.int8).T)
        quantized = [self.constant(name, integers), self.constant(f"{name}.scale", scale)]
        return self.op("DynamicQuantizeMatMul", [states, *quantized, "", offset], domain=CONTRIB)

    def first_tokens(self, states: str) -> str:
        return self.op("Gather", [states, "first_tokens"], axis=0)  # (B, D)

    def query_key_value(self, queries: str, states: str) -> tuple[str, str, str]:
        joint = self.op("Gather", [self.linear("query_key_value", states), "layout"], axis=0)  # (B, T, 3 D)
        query, key, value = self.ops("Split", [joint], 3, axis=2, num_outputs=3)
        if queries != states:  # slicing the joint product is faster than a second product for the first tokens
            query = self.op("Slice", [query, self.integers([0]), self.integers([1]), self.integers([1])])  # (B, 1, D)
        return query, key, value

    def project(self, side: str, prefix: str) -> str:
        name = f"{self.layer}query_key_value"
        weight, offset = (np.split(self.weights[f"{name}.{part}"], 3)[SIDES.index(side)] for part in ("weight", "bias"))
        product = self.op("MatMul", [prefix, self.constant(f"{name}.{side}", np.ascontiguousarray(weight.T))])
        return self.op("Add", [product, self.constant(f"{name}.{side}.bias", offset)])  # (B, P, D)

    def split_prefix(self, prefix: str) -> tuple[str, str]:
        halves = self.ops("Split", [prefix], 2, axis=1, num_outputs=2)  # (B, 1, P, D) each
        key, value = (self.op("Squeeze", [half, self.integers([1])]) for half in halves)  # (B, P, D) each
        return key, value

    def prepend(self, prefix: str, states: str) -> str:
        return self.op("Concat", [prefix, states], axis=1)  # (B, P + T, D)

    def attention(self, query: str, key: str, value: str, first_only: bool) -> str:
        query, value = (self.op("Transpose", [self.heads(states)], perm=[0, 2, 1, 3]) for states in (query, value))
        transposed = self.op("Transpose", [self.heads(key)], perm=[0, 2, 3, 1])  # (B, H, D / H, P + T)
        scale = self.constant("scale", np.float32((self.config.width // self.config.heads) ** -0.5))
        scores = self.op("Mul", [self.op("MatMul", [query, transposed]), scale])  # (B, H, T, P + T)
        bias = self.bias
        if first_only:
            bias = self.op("Slice", [bias, self.integers([0]), self.integers([1]), self.integers([2])])
        shares = self.op("Softmax", [self.op("Add", [scores, bias])], axis=-1)
        mixed = self.op("Transpose", [self.op("MatMul", [shares, value])], perm=[0, 2, 1, 3])  # (B, T, H, D / H)
        mixed = self.op("Reshape", [mixed, self.integers([-1, self.config.width])])  # (B T, D)
        return mixed if first_only else self.op("Gather", [mixed, "packed"], axis=0)  # (B, D) or (n, D)

    def activation(self, states: str) -> str:
        kind = ACTIVATIONS[self.config.activation]
        return self.op(kind.onnx, [states], domain=kind.domain)

    def add_norm(self, name: str, states: str, residual: str) -> str:
        name = self.layer + name
        weights = [self.constant(f"{name}.{part}", self.weights[f"{name}.{part}"]) for part in ("weight", "bias")]
        return self.op("SkipLayerNormalization", [states, residual, *weights], domain=CONTRIB, epsilon=self.config.norm_eps)

    # Nodes and constants --------------------------------------------------------------------------------------------------

    def heads(self, states: str) -> str:
        return self.op("Reshape", [states, self.integers([0, 0, self.config.heads, -1])])  # (B, T, H, D / H)

    def op(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        from onnx import helper

        names = [f"{kind}.{len(self.nodes)}.{output}" for output in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def integers(self, values: list[int]) -> str:
        return self.constant(f"integers {values}", np.array(values, np.int64))

    def constant(self, name: str, array: Any) -> str:
        """A constant of the graph, under its name; stored once."""
        from onnx import numpy_helper

        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name
