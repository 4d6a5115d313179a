"""Host tables: look-ups at every level, shipped tables, and errors about users' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.overheads import host_rows, list_hosts, load_host
from irgraph.overheads.format import HostFile, OpEntry, Stat, pooled
from irgraph.overheads.table import (
    FALLBACK_TABLE,
    LAUNCH_EXPONENTS,
    LAUNCH_STD,
    category,
    host_table,
    shape_key,
)

FILE = HostFile(
    1,
    "mine",
    Stat(7.0),
    {"kernel": Stat(4.0), "memcpy": Stat(11.0)},
    {
        "aten.linear": OpEntry(
            t2=Stat(30.0),
            t3=Stat(10.0),
            t5=Stat(20.0),
            launches=("kernel", "kernel"),
            shapes={"f32[4,8]": OpEntry(t2=Stat(33.0))},
        ),
        "aten.relu": OpEntry(t2=Stat(20.0), t3=Stat(8.0)),
        "aten.view": OpEntry(whole=Stat(4.0)),
        "autograd.TBackward0": OpEntry(whole=Stat(3.0)),
        "aten.add_": OpEntry(t2=Stat(5.0), t3=Stat(2.0)),
        "Optimizer.step#SGD.step": OpEntry(t2=Stat(60.0), t3=Stat(30.0)),
    },
)
HOST = host_table(FILE)


def linear(*shape: int) -> Op:
    return Op("aten.linear", operands=(Tensor("x", "f32", shape, "b"),))


def test_an_op_the_table_lists_has_its_own_times() -> None:
    costs = HOST.overheads(linear(2, 2), 2)
    assert (costs.t1, costs.t2, costs.t3, costs.t5) == (7.0, 30.0, 10.0, 20.0)
    assert costs.t4 == {"kernel": 4.0, "memcpy": 11.0}
    assert costs.level == "op"
    assert costs.listed == ("kernel", "kernel")


def test_times_for_its_shapes_come_first_and_the_worst_level_is_told() -> None:
    costs = HOST.overheads(linear(4, 8), 1)
    assert (costs.t2, costs.t3, costs.level) == (33.0, 10.0, "op")
    only = OpEntry(t2=Stat(1.0), t3=Stat(2.0))
    file = HostFile(1, "s", Stat(0.0), {}, {"aten.linear": OpEntry(shapes={"f32[4,8]": only})})
    assert host_table(file).overheads(linear(4, 8), 1).level == "op+shape"


def test_launches_of_one_call_follow_each_other_faster() -> None:
    host = host_table(replace(FILE, within=Stat(4.0)))
    one, many = Op("aten.a", body=(Op("aten.b"),)), Op("aten.a", body=(Op("aten.b"),) * 2)
    assert host.overheads(one, 3).t5 == 4.0
    assert host.overheads(many, 3).t5 == 20.0  # the mean of its category
    assert host.overheads(Op("fbgemm.c", body=(Op("aten.b"),) * 2), 3).t5 == 4.0
    assert host.overheads(linear(2, 2), 3).t5 == 20.0
    assert HOST.overheads(one, 3).t5 == 20.0


def test_an_unlisted_op_has_the_mean_of_its_category() -> None:
    costs = HOST.overheads(Op("aten.sigmoid"), 1)
    assert (costs.t2, costs.t3, costs.level) == (25.0, 9.0, "category")
    assert HOST.overheads(Op("aten.mul_"), 1).t2 == 5.0


def test_a_category_without_figures_has_the_mean_of_all() -> None:
    costs = HOST.overheads(Op("autograd.MulBackward0"), 1)
    assert costs.t2 == pytest.approx((30 + 20 + 5) / 3)
    assert costs.level == "global"


def test_an_op_without_launches_has_a_time_as_a_whole() -> None:
    costs = HOST.overheads(Op("aten.view"), 0)
    assert (costs.t5, costs.level) == (4.0, "op")
    # what a listed op takes between its launches says nothing of a call without any
    assert HOST.overheads(linear(2, 2), 0).t5 == 4.0
    assert HOST.overheads(Op("autograd.ViewBackward0"), 0).t5 == 3.0


def test_what_a_table_lacks_altogether_comes_from_the_default_one_and_is_told() -> None:
    default = load_host(FALLBACK_TABLE).overheads(linear(2), 2)
    empty = host_table(HostFile(1, "empty", Stat(7.0), {}))
    costs = empty.overheads(linear(2), 2)
    assert (costs.t1, costs.t2, costs.t3, costs.t5) == (7.0, default.t2, default.t3, default.t5)
    assert costs.t4 == default.t4
    assert costs.level == "default table"
    assert empty.lacking == ("T2", "T3", "T5", "times of calls without launches", "T4")
    assert HOST.lacking == ()


def test_a_table_may_count_launches_into_the_times_around_them() -> None:
    file = HostFile(1, "m", Stat(1.0), {}, {"aten.relu": OpEntry(t2=Stat(9.0), t3=Stat(2.0))})
    costs = host_table(file).overheads(Op("aten.relu"), 1)
    assert (costs.t2, costs.t4, costs.level) == (9.0, {}, "op")


def test_categories_follow_names() -> None:
    names = ["autograd.AddmmBackward0", "aten.add_", "aten.__and__", "aten.add"]
    assert [category(n) for n in names] == ["autograd", "in place", "call", "call"]
    assert category("Optimizer.step#SGD.step") == category("a label") == "label"


def test_labels_count_for_no_category() -> None:
    assert HOST.means["", "t2"].mean == pytest.approx((30 + 20 + 5) / 3)


def test_shape_keys_name_types_and_sizes() -> None:
    assert shape_key(linear(4, 8)) == "f32[4,8]"


def test_pooled_statistics_are_those_of_all_samples() -> None:
    together = pooled([Stat(1.0, 0.0, 1), Stat(4.0, 0.0, 2)])
    assert (together.mean, together.std, together.count) == (3.0, pytest.approx(2**0.5), 3)


def test_shipped_tables_load_and_name_their_sources() -> None:
    assert {"v100", "v100-2021-05-04", "v100-2021-05-14"} <= set(list_hosts())
    assert "v100-32gb-torchrec-profiled" in list_hosts()
    for row in host_rows():
        free = row["source"].endswith(("(MIT)", "(BSD-3-Clause)"))
        assert free, f"{row['host']}.json needs a source, and a licence that lets figures be shared"


def test_the_default_table_covers_the_ops_of_a_dlrm_step() -> None:
    host = load_host("v100")
    names = [
        "aten.linear",
        "aten.relu",
        "aten.to",
        "aten.cat",
        "aten.bmm",
        "aten.index",
        "aten.sigmoid",
        "irgraph.batched_embedding",
        "irgraph.batched_embedding_backward",
        "autograd.AddmmBackward0",
        "autograd.ReluBackward0",
        "autograd.AccumulateGrad",
        "autograd.BmmBackward0",
        "autograd.IndexBackward0",
        "aten.zero_",
    ]
    assert {name: host.overheads(Op(name), 1).level for name in names} == dict.fromkeys(names, "op")


def test_a_product_in_tf32_is_the_same_call_of_the_host() -> None:
    for kind in ("linear", "addmm", "bmm"):
        rounded, plain = Op(f"irgraph.{kind}_tf32"), Op(f"aten.{kind}")
        assert load_host("v100").overheads(rounded, 1) == load_host("v100").overheads(plain, 1)


def test_waiting_is_in_the_copies_of_one_snapshot_only() -> None:
    waits = {n: load_host(n).overheads(Op("aten.to"), 1).t3 for n in list_hosts()}
    assert waits["v100-2021-05-04"] > 190.0
    assert max(waits["v100"], waits["v100-2021-05-14"]) < 7.0


def write(path: Path, **change: Any) -> str:
    content = {"format": 1, "name": "x", "T1": {"mean": 1.0}, "T4": {}, "ops": {}} | change
    path.write_text(json.dumps(content))
    return str(path)


def test_a_users_file_is_read(tmp_path: Path) -> None:
    ops = {"aten.linear": {"T2": {"mean": 3.5}, "T3": {"mean": 1.0, "quantiles": {"p50": 0.9}}}}
    table = load_host(write(tmp_path / "h.json", ops=ops))
    assert table.name == "x"
    assert table.overheads(linear(2), 1).t2 == 3.5


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(IrgraphError, match="no host table or file 'v10'; did you mean 'v100'"):
        load_host("v10")


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h.json").write_text("hello")
    with pytest.raises(IrgraphError, match=r"h\.json: error: not a host table: "):
        load_host(str(tmp_path / "h.json"))


def test_a_newer_format_is_refused_by_number(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="has format 2; format 1 is the newest known"):
        load_host(write(tmp_path / "h.json", format=2))


def test_a_wrong_field_is_named(tmp_path: Path) -> None:
    ops = {"aten.linear": {"T2": {"mean": "fast"}}}
    with pytest.raises(IrgraphError, match=r"wrong field in a host table: .*\.T2\.mean"):
        load_host(write(tmp_path / "h.json", ops=ops))


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    ops = {"aten.linear": {"T6": {"mean": 1.0}}}
    with pytest.raises(IrgraphError, match=r"wrong field in a host table: .*T6"):
        load_host(write(tmp_path / "h.json", ops=ops))


@pytest.mark.parametrize("time", [-1.0, 1e30])
def test_an_impossible_time_is_refused(time: float, tmp_path: Path) -> None:
    ops = {"aten.linear": {"T2": {"mean": time}}}
    with pytest.raises(IrgraphError, match=r"a time below 0 or above .*: T2 of aten\.linear"):
        load_host(write(tmp_path / "h.json", ops=ops))


def test_a_faster_host_takes_less_of_everything() -> None:
    plain, fast = load_host("v100"), load_host("v100@2x")
    assert fast.name == "v100@2x"
    for launches in (0, 1, 2):
        slow, quick = (host.overheads(Op("aten.linear"), launches) for host in (plain, fast))
        assert [quick.t1, quick.t2, quick.t3, quick.t5] == [
            time / 2 for time in (slow.t1, slow.t2, slow.t3, slow.t5)
        ]
        assert quick.t4 == {kind: time / 2 for kind, time in slow.t4.items()}
        assert (quick.std, quick.level) == (slow.std, slow.level)


def test_an_unknown_host_of_another_speed_is_named() -> None:
    with pytest.raises(IrgraphError, match="no host table or file 'v10'"):
        load_host("v10@2x")


def test_one_launch_time_scales_a_table() -> None:
    plain = load_host("v100").overheads(linear(2), 2)
    table = load_host(f"v100@{2 * plain.t4['kernel']:.6f}us")
    costs = table.overheads(linear(2), 2)
    assert costs.t4["kernel"] == pytest.approx(2 * plain.t4["kernel"], rel=1e-5)
    for kind in ("T1", "T2", "T3", "T5"):
        expected = 2 ** LAUNCH_EXPONENTS[kind] * getattr(plain, kind.lower())
        assert getattr(costs, kind.lower()) == pytest.approx(expected, rel=1e-5)
    idle = (host.overheads(linear(2), 0).t5 for host in (table, load_host("v100")))
    assert next(idle) == pytest.approx(2 ** LAUNCH_EXPONENTS["whole"] * next(idle), rel=1e-5)
    assert (table.machine_std, load_host("v100@2x").machine_std) == (LAUNCH_STD, 0.0)


@pytest.mark.parametrize(
    "name", ["v100@0x", "v100@0.001x", "v100@1000x", "v100@2x@2x", "v100@0us", "v100@9999us"]
)
def test_speeds_that_no_host_has_are_refused(name: str) -> None:
    with pytest.raises(IrgraphError, match=r"one factor between 0\.01 and 100") as caught:
        load_host(name)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (4643.9, r"T4.kernel.mean is 4,643.9 us, .* if it is in ns, write 4.6439"),
        (4.6e-6, r"T4.kernel.mean is 4.6e-06 us, .* if it is in s, write 4.6"),
        (0.0046, r"T4.kernel.mean is 0.0046 us, .* if it is in ms, write 4.6"),
    ],
)
def test_launches_in_another_unit_are_refused(tmp_path: Path, mean: float, message: str) -> None:
    path = write(tmp_path / "h.json", T4={"kernel": {"mean": mean}})
    with pytest.raises(IrgraphError, match=message):
        load_host(path)
    copies = write(tmp_path / "h.json", T4={"memcpy": {"mean": 4643.9}})
    assert load_host(copies).name == "x"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": 8000.0}, r"T2 of aten.linear: its mean is 8,000 us, its median 7.5 us"),
        ({"mean": 0.008}, r"T2 of aten.linear: its mean is 0.008 us, its median 7.5 us"),
        ({"quantiles": {"p05": 5.0, "p50": 7500.0, "p95": 14.0}}, "its quantiles decrease"),
    ],
)
def test_statistics_that_no_sample_has_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    quantiles = {"p05": 5.0, "p50": 7.5, "p95": 14.0}
    sound = {"mean": 8.0, "std": 3.0, "count": 40, "quantiles": quantiles}
    entry = {"T2": {"mean": 9.0}, "shapes": {"f32[8]": {"T2": sound}}}
    load_host(write(tmp_path / "h.json", ops={"aten.linear": {**entry, "T2": sound}}))
    for ops in (
        {"T2": {**sound, **changes}},
        {**entry, "shapes": {"f32[8]": {"T2": {**sound, **changes}}}},
    ):
        with pytest.raises(IrgraphError, match=message.replace("linear:", "linear.*:")):
            load_host(write(tmp_path / "h.json", ops={"aten.linear": ops}))


def test_times_between_operations_in_another_unit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"T1.mean is 0.0046 us, .* if it is in ms, write 4.6"):
        load_host(write(tmp_path / "h.json", T1={"mean": 0.0046}))


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "h.json"))
    path.write_text(path.read_text()[:-1] + ', "T1": {"mean": 2.0}}')
    with pytest.raises(IrgraphError, match="an object has the key 'T1' twice"):
        load_host(str(path))
