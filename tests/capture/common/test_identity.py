"""Names of devices, and what ids of a trace mean."""

from __future__ import annotations

from irgraph.capture.common.identity import Identities
from irgraph.capture.common.nodes import TraceTensor


def traced(identity: int, storage: int, offset: int = 0, *shape: int) -> TraceTensor:
    return TraceTensor(identity, storage, offset, "cuda:0", shape or (4,), "f32")


def test_devices_are_numbered_as_they_appear() -> None:
    known = Identities()
    assert [known.device(d) for d in ("cpu", "cuda:3", "cuda:1", "cuda:3", "cuda")] == [
        "cpu",
        "gpu0",
        "gpu1",
        "gpu0",
        "gpu0",
    ]


def test_a_device_without_its_number_is_the_one_in_use() -> None:
    known = Identities()
    assert [known.device(d) for d in ("cuda", "cuda:0")] == ["gpu0", "gpu0"]


def test_no_device_is_the_accelerator_if_there_is_one() -> None:
    known = Identities()
    assert known.device("") == "cpu"
    known.device("cuda:0")
    assert known.device("") == "gpu0"


def test_a_copy_of_the_handle_is_known_by_its_bytes() -> None:
    known = Identities()
    first = known.use(traced(1, 9))
    assert known.find(traced(2, 9)) is first
    assert known.find(traced(2, 9, 2, 2)) is None


def test_an_id_with_another_shape_is_another_tensor() -> None:
    known = Identities()
    first = known.use(traced(1, 9, 0, 4))
    assert known.use(traced(1, 8, 0, 5)) is not first


def test_a_definition_ends_what_a_storage_id_meant() -> None:
    known = Identities()
    first = known.define(traced(1, 9), [])
    second = known.define(traced(2, 9), [])
    assert first.buffer != second.buffer
    assert known.find(traced(1, 9)) is second


def test_storages_that_all_look_alike_say_nothing() -> None:
    known = Identities(("meta",))
    a = TraceTensor(1, 7, 0, "meta", (4,), "f32")
    b = TraceTensor(2, 7, 0, "meta", (4,), "f32")
    assert known.use(a).buffer != known.use(b).buffer
