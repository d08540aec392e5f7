"""The encoder's layers as an ONNX graph: the same arithmetic as `model/encoder.py`, for BERT, RoBERTa and MPNet alike.

Letters: n tokens of all queries, B queries, T tokens of the longest, D width, H heads, P prefix rows per side. Everything but
attention works on the n real tokens, one below the other: no product is spent on padding. For attention they are laid out as
(B, T) and gathered again behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptdsi.model.config import EncoderConfig

Array = NDArray[Any]
OPSET, CONTRIB, IR = 20, "com.microsoft", 10  # ir version: the newest that onnxruntime 1.18 reads
LARGEST = 63  # of int8 weights: without VNNI, sums of products of whole bytes overflow 16 bits, of seven bits they do not
ACTIVATIONS = {"gelu": ("Gelu", CONTRIB), "relu": ("Relu", ""), "gelu_new": ("FastGelu", CONTRIB)}


class Part(NamedTuple):
    """Which layers a graph runs, those of them that take a prefix, and whether the last one asks for each query's first token only."""

    first: int
    last: int
    prefixed: tuple[int, ...] = ()
    firsts_only: bool = False


def build(config: EncoderConfig, weights: Mapping[str, Array], part: Part, *, int8: bool = False) -> bytes:
    """The graph, weights included, ready for onnxruntime.

    Inputs: `states` (n, D); `place` (B, T), the token at each place; `token` (n,), the place of each token; `bias`, what is added
    to attention scores (…, T, T), and `prefix_bias` (…, T, P + T) with `prefix_K` (B, 2, P, D) where layer K takes a prefix; `firsts` (B,).
    Output: `out` (n or B, D).
    """
    return _Builder(config, weights, int8).build(part)


class _Builder:
    def __init__(self, config: EncoderConfig, weights: Mapping[str, Array], int8: bool) -> None:
        self.config, self.weights, self.int8 = config, weights, int8
        self.nodes: list[Any] = []
        self.held: dict[str, Any] = {}

    def build(self, part: Part) -> bytes:
        from onnx import TensorProto, helper

        states = "states"
        for number in range(part.first, part.last + 1):
            states = self.layer(number, states, number in part.prefixed, part.firsts_only and number == part.last)
        self.nodes[-1].output[0] = "out"
        real, whole, width = TensorProto.FLOAT, TensorProto.INT64, self.config.width
        inputs: list[tuple[str, int, list[Any]]] = [("states", real, ["n", width]), ("place", whole, ["B", "T"]), ("token", whole, ["n"])]
        inputs += [("bias", real, ["b", "h", "q", "T"])] if set(range(part.first, part.last + 1)) - set(part.prefixed) else []
        inputs += [("prefix_bias", real, ["pb", "ph", "pq", "S"])] if part.prefixed else []
        inputs += [(f"prefix_{number}", real, ["B", 2, "P", width]) for number in part.prefixed]
        inputs += [("firsts", whole, ["B"])] if part.firsts_only else []
        graph = helper.make_graph(
            self.nodes,
            "layers",
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
            [helper.make_tensor_value_info("out", real, ["m", width])],
            list(self.held.values()),
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR).SerializeToString()  # type: ignore[no-any-return]

    def layer(self, number: int, states: str, prefixed: bool, firsts_only: bool) -> str:
        """One layer over the tokens (n, D); of the last one only the queries' first tokens may be wanted: (B, D)."""
        at = f"layers.{number - 1}"
        width = self.config.width
        laid = self.op("Gather", [self.linear(f"{at}.query_key_value", states), "place"], axis=0)  # (B, T, 3 D)
        query, key, value = self.ops("Split", [laid], 3, axis=2, num_outputs=3)
        if firsts_only:
            query = self.op("Slice", [query, self.whole([0]), self.whole([1]), self.whole([1])])  # (B, 1, D)
        if prefixed:
            halves = self.ops("Split", [f"prefix_{number}"], 2, axis=1, num_outputs=2)  # (B, 1, P, D) each
            before = [self.op("Squeeze", [half, self.whole([1])]) for half in halves]
            key, value = (self.op("Concat", [prefix, own], axis=1) for prefix, own in zip(before, (key, value), strict=True))
        query, value = (self.op("Transpose", [self.heads(one)], perm=[0, 2, 1, 3]) for one in (query, value))
        turned = self.op("Transpose", [self.heads(key)], perm=[0, 2, 3, 1])  # (B, H, D / H, P + T)
        scale = self.hold("scale", np.float32((width // self.config.heads) ** -0.5))
        scores = self.op("Mul", [self.op("MatMul", [query, turned]), scale])  # (B, H, T, P + T)
        bias = "prefix_bias" if prefixed else "bias"
        if firsts_only:
            bias = self.op("Slice", [bias, self.whole([0]), self.whole([1]), self.whole([2])])
        shares = self.op("Softmax", [self.op("Add", [scores, bias])], axis=-1)
        mixed = self.op("Transpose", [self.op("MatMul", [shares, value])], perm=[0, 2, 1, 3])  # (B, T, H, D / H)
        mixed = self.op("Reshape", [mixed, self.whole([-1, width])])  # (B T, D)
        if firsts_only:
            asking = self.op("Gather", [states, "firsts"], axis=0)  # (B, D)
        else:
            asking, mixed = states, self.op("Gather", [mixed, "token"], axis=0)  # (n, D)
        middle = self.normed(f"{at}.attention_norm", self.linear(f"{at}.attention_out", mixed), asking)
        kind, domain = ACTIVATIONS[self.config.activation]
        fed = self.op(kind, [self.linear(f"{at}.up", middle)], domain=domain)
        return self.normed(f"{at}.output_norm", self.linear(f"{at}.down", fed), middle)

    def linear(self, name: str, states: str) -> str:
        weight = self.weights[f"{name}.weight"]
        offset = self.hold(f"{name}.bias", self.weights[f"{name}.bias"])
        if not self.int8:
            return self.op("Gemm", [states, self.hold(name, weight), offset], transB=1)
        scale = np.maximum(np.abs(weight).max(1), 1e-12).astype(np.float32) / LARGEST  # one per output
        codes = np.rint(weight / scale[:, None]).astype(np.int8).T
        whole = [self.hold(name, np.ascontiguousarray(codes)), self.hold(f"{name}.scale", scale)]
        return self.op("DynamicQuantizeMatMul", [states, *whole, "", offset], domain=CONTRIB)

    def normed(self, name: str, states: str, beside: str) -> str:
        held = [self.hold(f"{name}.{part}", self.weights[f"{name}.{part}"]) for part in ("weight", "bias")]
        return self.op("SkipLayerNormalization", [states, beside, *held], domain=CONTRIB, epsilon=self.config.norm_eps)

    def heads(self, states: str) -> str:
        return self.op("Reshape", [states, self.whole([0, 0, self.config.heads, -1])])  # (B, T, H, D / H)

    def op(self, kind: str, inputs: Sequence[str], **said: Any) -> str:
        return self.ops(kind, inputs, 1, **said)[0]

    def ops(self, kind: str, inputs: Sequence[str], outputs: int, **said: Any) -> list[str]:
        from onnx import helper

        names = [f"{kind}.{len(self.nodes)}.{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **said))
        return names

    def whole(self, numbers: list[int]) -> str:
        return self.hold(f"whole {numbers}", np.array(numbers, np.int64))

    def hold(self, name: str, array: Any) -> str:
        """A constant of the graph, under its name; held once."""
        from onnx import numpy_helper

        if name not in self.held:
            self.held[name] = numpy_helper.from_array(np.asarray(array), name)
        return name
