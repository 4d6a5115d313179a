"""A case of a sweep as a graph."""

from __future__ import annotations

from costmodels.benchmarks.captured import captured


def test_the_gradient_of_attention_is_that_of_the_fused_op() -> None:
    sizes = {"batch": 2, "heads": 2, "length": 64, "dim": 44}
    case = {"family": "attention", "op": "attention_backward", "dtype": "bf16", "sizes": sizes}
    graph = captured({**case, "indices": "", "key": "attention_backward"})
    names = {op.name for op in graph.walk()}
    assert "aten._scaled_dot_product_flash_attention_backward" in names
    assert "aten.bmm" not in names
