"""Who takes part in collectives, and what ops then take: nothing is made up."""

from __future__ import annotations

from math import pi
from statistics import NormalDist

import pytest
from msgspec.structs import replace

from costmodels.collectives.load import find_curve
from costmodels.collectives.peers import Peers, message_bytes, peers_of, sent_bytes
from costmodels.devices.library import load_device
from costmodels.pricing.price import price
from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import with_ranks
from irgraph.ir.tensor import Tensor
from irgraph.predict.caveats import untimed_collectives

MIB = 2**20


def tensor(name: str, size: int, device: str = "gpu0") -> Tensor:
    return Tensor(name, "f32", (size,), f"b{name}", device=device)


def reduction(size: int = MIB) -> Op:
    return Op("c10d.allreduce_", ((tensor("g", size),),), written=frozenset({"g"}))


def exchange(*splits: int) -> Op:
    total = sum(splits)
    return Op(
        "c10d.alltoall_base_",
        (tensor("o", total), tensor("i", total)),
        attributes={"output_split_sizes": splits},
    )


def priced(graph: Graph, device: str = "v100") -> Priced:
    return price(graph, load_device(device))


def test_a_reduction_takes_what_its_curve_says() -> None:
    op = reduction()
    found = priced(with_ranks(Graph("g", ops=(op,)), 4))
    (kernel,) = found.of(op)
    assert (kernel.family, kernel.name) == ("collective", "all_reduce of 4, 4194304 B")
    assert kernel.time == pytest.approx(find_curve("all_reduce", 4).time(4 * MIB))
    assert kernel.time == pytest.approx(171.1, abs=0.5)
    assert 0.0 < kernel.spread < kernel.time
    assert kernel.by == "heuristic"
    assert kernel.formula.startswith("4 ranks on one machine, as given; curve of v100 (")
    assert found.unknown == ()


def test_the_mean_error_of_a_curve_widens_to_90_percent_of_a_normal_law() -> None:
    (kernel,) = priced(with_ranks(Graph("g", ops=(op := reduction(),)), 4)).of(op)
    mean_of_absolute = (2 / pi) ** 0.5
    half = NormalDist().inv_cdf(0.95) / mean_of_absolute
    error = find_curve("all_reduce", 4).error
    assert kernel.spread == pytest.approx(half * error * kernel.time, rel=1e-3)


def test_without_a_number_of_ranks_a_reduction_stays_unknown_and_is_told() -> None:
    op = reduction()
    graph = Graph("g", ops=(op, op))
    assert priced(graph).unknown == (op, op)
    (line,) = untimed_collectives(priced(graph))
    assert line.startswith("2 collectives have no time, and a floor stands in")
    assert "nothing says how many ranks take part (--ranks N" in line


@pytest.mark.parametrize(
    ("device", "ranks", "reason"),
    [
        (
            "l4",
            "8",
            "no collectives were measured on L4 (--fabric takes a100, a100-slow-network, b200, "
            "b300, h100, h200, rtx-pro-6000, v100, or a file that describes its links)",
        ),
        ("a100-pcie", "8", "no collectives were measured on A100-PCIE-40GB"),
        (
            "rtx-pro-6000-blackwell-server-edition",
            "2x4",
            "nobody says how fast the network between several machines of rtx-pro-6000 is",
        ),
    ],
)
def test_a_device_without_curves_is_told(device: str, ranks: str, reason: str) -> None:
    op = reduction()
    graph = with_ranks(Graph("g", ops=(op,)), ranks)
    assert priced(graph, device).unknown == (op,)
    (line,) = untimed_collectives(priced(graph, device))
    assert reason in line


def test_a_fabric_that_is_named_goes_before_the_devices() -> None:
    op = reduction()
    graph = with_ranks(Graph("g", ops=(op,)), "2x8", "a100")
    (kernel,) = priced(graph, "h100").of(op)
    assert kernel.time == pytest.approx(find_curve("all_reduce", 16, "a100", 8).time(4 * MIB))
    assert kernel.formula.startswith("16 ranks 8 a machine, as given; curve of a100")


def test_an_op_that_names_its_ranks_goes_first_and_speaks_for_the_others() -> None:
    swap, sum_ = exchange(256, 256), reduction()
    graph = Graph("g", ops=(swap, sum_))
    assert [priced(graph).of(op)[0].name for op in (swap, sum_)] == [
        "all_to_allv of 2, 2048 B",
        "all_reduce of 2, 4194304 B",
    ]
    given = priced(with_ranks(graph, 4))
    assert [given.of(op)[0].name.partition(",")[0] for op in (swap, sum_)] == [
        "all_to_allv of 2",
        "all_reduce of 4",
    ]


def test_ops_that_name_different_ranks_speak_for_themselves_alone() -> None:
    graph = Graph("g", ops=(exchange(1, 1), exchange(1, 1, 1), reduction()))
    assert peers_of(graph, "V100-SXM2-16GB").ranks == 0
    assert priced(graph).unknown == (graph.ops[2],)


def test_one_rank_exchanges_nothing() -> None:
    op = reduction()
    assert priced(with_ranks(Graph("g", ops=(op,)), 1)).kernels[op] == ()


def test_what_was_exchanged_is_waited_for_without_work() -> None:
    op = Op("_c10d_functional.wait_tensor", (tensor("a", 4),), results=(tensor("b", 4),))
    found = priced(Graph("g", ops=(op,)))
    assert (found.kernels[op], found.unknown, untimed_collectives(found)) == ((), (), [])


def test_exchanges_between_hosts_are_no_work_of_the_device() -> None:
    op = Op("c10d.allreduce_", ((tensor("g", 8, "cpu"),),))
    graph = Graph("g", ops=(op,))
    assert (priced(graph).unknown, untimed_collectives(priced(graph))) == ((), [])


def test_collectives_that_nobody_measured_are_told() -> None:
    op = Op("c10d.scatter_", ((tensor("g", 8),),))
    (line,) = untimed_collectives(priced(with_ranks(Graph("g", ops=(op,)), 2)))
    assert "no curve of such an op was measured" in line
    assert Peers(8, 8, "", "a100").missing_reason(Op("c10d.broadcast_")) == ""


def test_messages_beyond_what_was_measured_are_outside() -> None:
    small, large = reduction(), reduction(200 * MIB)
    found = priced(with_ranks(Graph("g", ops=(small, large)), 8), "a100")
    assert [found.of(op)[0].outside for op in (small, large)] == [False, True]
    largest = reduction(int(find_curve("all_reduce", 8, "a100").largest) // 4)
    assert not priced(with_ranks(Graph("g", ops=(largest,)), 8), "a100").of(largest)[0].outside


def test_an_uneven_exchange_counts_the_larger_of_sent_and_received() -> None:
    sent, received = tensor("i", 100), tensor("o", 300)
    assert message_bytes(Op("c10d.alltoall_base_", (received, sent))) == 1200
    assert message_bytes(Op("c10d.alltoall_base_", (sent, received))) == 1200


def test_what_a_rank_sends_by_hand() -> None:
    """1,000 elements of f32 on 4 ranks; an all-to-all keeps its own part, whatever its size."""
    whole, part = tensor("w", 1000), tensor("p", 250)
    peers = Peers(4, 4, "", "a100", rank=1)
    for name, operands, made, sent in (
        ("all_reduce", (whole,), whole, 6000),
        ("reduce_scatter_tensor", (whole,), part, 3000),
        ("all_gather_into_tensor", (part,), whole, 3000),
        ("all_to_all_single", (whole,), whole, 3000),
        ("broadcast", (whole,), whole, 4000),
    ):
        assert sent_bytes(Op(f"_c10d_functional.{name}", operands, (made,)), peers) == sent
    uneven = {"input_split_sizes": (100, 700, 100, 100)}
    op = Op("_c10d_functional.all_to_all_single", (whole,), (whole,), uneven)
    assert sent_bytes(op, peers) == pytest.approx(1200)
    assert sent_bytes(op, replace(peers, rank=0)) == pytest.approx(3600)
    assert sent_bytes(Op("c10d.alltoall_base_", (tensor("o", 9), whole)), peers) == 3000
    (kernel,) = priced(with_ranks(Graph("g", ops=(reduction(),)), 4)).kernels.popitem()[1]
    assert kernel.link_bytes == 1.5 * 4 * MIB
