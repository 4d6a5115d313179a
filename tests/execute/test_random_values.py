"""The values that a step starts from when none are given."""

from __future__ import annotations

import torch
from torch.nn.utils import rnn

from irgraph.capture.live import capture
from irgraph.execute import compare, execute
from tests.language.models import bag, model, table


def test_row_numbers_stay_within_their_tables() -> None:
    text = (
        "param %w0 : f32[3, 8] in $w0\nparam %w1 : f32[500, 8] in $w1\n"
        "input %i : i32[2, 20] in $i\ninput %o0 : i32[B] in $o0\ninput %o1 : i32[B] in $o1\n"
        "%i0 = aten.select(%i, dim = 0, index = 0) : i32[20] in $i\n"
        "%i1 = aten.select(%i, dim = 0, index = 1) : i32[20] in $i+80\n"
    )
    looked_up = "".join(bag(k, indices=f"%i{k}") for k in range(2)).replace("i64", "i32")
    rows = execute(model(text + looked_up.replace("i32[20] in $a", "i32[0] in $a")))["i"]
    assert rows[0].min() >= 0 and rows[0].max() < 3
    assert 3 <= rows[1].max() < 500


def test_rules_are_followed_through_copies_to_the_device() -> None:
    text = (
        "input %h : i64[2, 3] @cpu in $h\nparam %w : f32[9, 2] in $w\n"
        "%d = aten._to_copy(%h, device = @gpu0) : i64[2, 3] in $d\n"
        "%s = aten.select(%d, dim = 0, index = 1) : i64[3] in $d+24\n"
        "%y = aten.embedding(%w, %s) : f32[3, 2] in $y\n"
    )
    rows = execute(model(text))["h"]
    assert rows[0].max() <= 1
    assert rows[1].max() < 9


def test_row_numbers_that_are_repeated_by_a_view_are_drawn() -> None:
    """A buffer of positions that is expanded to the batch cannot be written in that form."""
    text = (
        "param %w : f32[9, 2] in $w\ninput %p : i64[1, 3] in $p\n"
        "%e = aten.expand(%p, size = [4, 3]) : i64[4, 3; 0, 1] in $p\n"
        "%y = aten.embedding(%w, %e) : f32[4, 3, 2] in $y\n"
    )
    assert 1 < execute(model(text), seed=1)["p"].max() < 9


def test_rows_of_a_sparse_gradient_differ_as_far_as_they_can() -> None:
    """For how many differ is a size of the model: as many as the step had that was captured."""
    table = torch.nn.EmbeddingBag(20, 5, mode="sum", sparse=True).to("meta")
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    words = torch.arange(24).view(4, 6) % 20

    def step() -> None:
        optimizer.zero_grad()
        table(words.to("meta")).sum().backward()
        optimizer.step()

    graph = capture(step).graph
    assert compare(graph, graph).same


def test_lengths_whose_sums_are_starts_have_all_indices() -> None:
    """As torchrec's ``KeyedJaggedTensor`` makes the starts of each key's bags."""
    table = torch.nn.EmbeddingBag(20, 5, mode="sum", include_last_offset=True).to("meta")
    lengths, words = torch.tensor([[2, 1, 3], [1, 0, 2]], dtype=torch.int32), torch.arange(9)

    def step() -> torch.Tensor | None:
        table.weight.grad = None
        rows = lengths.to("meta")
        starts = torch.cat([rows.new_zeros(2, 1), rows.cumsum(-1).to(torch.int32)], -1)
        parts = words.to("meta").split([6, 3])
        for part, start in zip(parts, starts.unbind(), strict=True):
            table(part, start).sum().backward()
        return table.weight.grad

    graph = capture(step).graph
    assert compare(graph, graph).same
    (drawn,) = (d.tensor.name for d in graph.tensors if d.tensor.shape == (2, 3))
    assert execute(graph)[drawn].sum(1).tolist() == [6, 3]


def test_packed_sequences_have_the_lengths_that_the_model_was_captured_with() -> None:
    layer = torch.nn.LSTM(4, 4).to("meta")
    rows, lengths = torch.rand(3, 5, 4), torch.tensor([5, 5, 2])

    def step() -> torch.Tensor:
        data = rnn.pack_padded_sequence(rows.to("meta"), lengths, batch_first=True)
        return layer(data)[0].data

    graph = capture(step).graph
    assert compare(graph, graph).same


def test_bags_start_at_zero_and_increase() -> None:
    starts = execute(model(table(0) + bag(0)))["o0"]
    assert starts[0] == 0
    assert (starts.diff() >= 0).all()
    assert starts[-1] <= 20


def test_the_last_offset_is_the_end_where_it_is_included() -> None:
    closed = bag(0, ", include_last_offset = true").replace("[B, 8]", "[3, 8]")
    assert execute(model(table(0) + closed))["o0"][-1] == 20


def test_classes_stay_below_their_number() -> None:
    text = (
        "input %s : f32[50, 3] in $s\ninput %t : i64[50] in $t\n"
        "%l, %n = aten.nll_loss_forward(%s, %t, weight = none, reduction = 1, ignore_index = -100)"
        " : f32[] in $l, f32[] in $n\n"
    )
    assert set(execute(model(text))["t"].tolist()) == {0, 1, 2}


def test_memory_that_the_program_filled_is_drawn_too() -> None:
    text = (
        "input %x : f32[5, 7] in $x\n"
        "%e = aten.empty(size = [30], dtype = i64, device = @gpu0) : i64[30] in $e\n"
        "%y = aten.index(%x, [none, %e]) : f32[5, 30] in $y\n"
    )
    left = execute(model(text))
    assert set(left["e"].tolist()) == set(range(7))
    assert torch.equal(left.initial["e"], left["e"])
    given = execute(model(text), {"e": torch.full((30,), 6)})
    assert torch.equal(given["y"], given["x"][:, 6:].expand(5, 30))


def test_values_go_by_role() -> None:
    text = (
        "param %w : f32[9, 4] in $w\nstate %m : f32[40] in $m\ninput %b : bool[40] in $b\n"
        "input %c : c64[40] in $c\ninput %n : i32[40] in $n\n"
    )
    left = execute(model(text))
    assert left["w"].abs().max() <= 0.5 and left["w"].min() < 0
    assert left["m"].min() >= 0 and left["m"].max() < 1
    assert set(left["n"].tolist()) == {0, 1}
    assert 0 < left["b"].sum() < 40
    assert left["c"].real.min() >= 0


def test_equal_names_get_equal_values() -> None:
    one, two = model("input %x : f32[9] in $x\n"), model("input %x : f32[9] in $other\n")
    assert torch.equal(execute(one)["x"], execute(two)["x"])
    assert not torch.equal(execute(one)["x"], execute(one, seed=1)["x"])


def test_picked_elements_serve_as_what_they_were_picked_from() -> None:
    text = (
        "state %k : i64[1, 9] in $k\ninput %i : i64[1, 4] in $i\nparam %w : f32[2, 3] in $w\n"
        "%g = aten.gather(%k, dim = 1, index = %i) : i64[1, 4] in $g\n"
        "%y = aten.embedding(%w, %g) : f32[1, 4, 3] in $y\n"
    )
    assert 0 <= execute(model(text))["k"].min() <= execute(model(text))["k"].max() < 2


def test_labels_and_lengths_fit_their_scores() -> None:
    text = (
        "input %s : f32[7, 2, 5] in $s\ninput %t : i64[2, 3] in $t\n"
        "input %a : i64[2] in $a\ninput %b : i64[2] in $b\n"
        "%l, %m = aten._ctc_loss(%s, %t, %a, %b) : f32[2] in $l, f32[2, 7, 7] in $m\n"
    )
    made = execute(model(text))
    for name, most in (("t", 4), ("a", 7), ("b", 3)):
        assert made[name].min() >= 0 and made[name].max() <= most
