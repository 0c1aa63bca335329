"""Op graphs: the format, capturing one from torch, the shipped ones, the op database and its measuring."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from conftest import benchmark

from joulecast.errors import JoulecastError
from joulecast.graphs import database as db
from joulecast.graphs import network_graphs as shipped
from joulecast.graphs.costs import Cost, Roofline, op_work
from joulecast.graphs.database import Database, Entry
from joulecast.graphs.opgraph import (
    KINDS,
    Access,
    Dim,
    DimKind,
    Op,
    OpGraph,
    Tensor,
    checked,
    read_graph,
)
from joulecast.graphs.views import Atom, View, narrow, permute, regroup, reshape, select, transpose
from joulecast.runs.provenance import usable_cores

BATCH, OTHER, REDUCE, OPAQUE = DimKind.BATCH, DimKind.OTHER, DimKind.REDUCE, DimKind.OPAQUE


def a_linear(name="fc", reads="x", writes="y"):
    return Op(
        name=name,
        kind="linear",
        module="fc",
        dims=(Dim("batch", 2, BATCH), Dim("out", 6, OTHER), Dim("in", 4, REDUCE)),
        reads=(Access(reads, ("batch", "in")), Access("w", ("out", "in"))),
        writes=(Access(writes, ("batch", "out")),),
        attributes={},
    )


def a_graph(*ops):
    tensors = (
        Tensor("x", (2, 4), 4, "input"),
        Tensor("w", (6, 4), 4, "parameter"),
        Tensor("y", (2, 6), 4, "activation"),
        Tensor("z", (2, 6), 4, "activation"),
    )
    return OpGraph("small", ops or (a_linear(),), {t.name: t for t in tensors}, 2)


def summary(op):
    return {d.name: (d.size, d.kind.value) for d in op.dims}


def axes_read(op):
    return [(access.tensor, access.axes) for access in op.reads]


class TestFormat:
    def test_a_graph_is_read_as_it_was_written(self, tmp_path):
        graph = a_graph()
        graph.write(tmp_path / "graph.json")
        assert read_graph(tmp_path / "graph.json") == graph

    @pytest.mark.parametrize(
        ("ops", "says"),
        [
            ((a_linear("one", "z", "y"), a_linear("two", "y", "z")), "`one` reads `z` before"),
            ((replace(a_linear("odd"), kind="lstm"),), "`odd` is of the unknown kind `lstm`"),
            (
                (replace(a_linear("fc"), attributes={"groups": "1"}),),
                r"`fc`: attributes: groups: Input should be a valid integer",
            ),
            ((replace(a_linear("idle"), writes=()),), "`idle` writes no tensor"),
            ((a_linear("fc", "nothing"),), "`fc` names the unknown tensor `nothing`"),
            (
                (replace(a_linear("flat"), writes=(Access("y", ("batch",)),)),),
                "`flat` maps 1 axes of tensor `y`, which has 2",
            ),
            (
                (replace(a_linear("lost"), writes=(Access("y", ("batch", "rows")),)),),
                "`lost` maps an axis of `y` to `rows`",
            ),
            ((a_linear("one"), a_linear("two")), "`y` is written by op `one` and by op `two`"),
        ],
    )
    def test_a_bad_graph_is_refused_by_the_name_of_its_op(self, ops, says):
        with pytest.raises(JoulecastError, match=says):
            checked(a_graph(*ops))

    def test_another_batch_scales_activations_and_not_parameters(self):
        graph = a_graph().with_batch(6)
        assert graph.tensors["x"].shape == (6, 4) and graph.tensors["y"].shape == (6, 6)
        assert graph.tensors["w"].shape == (6, 4)
        assert graph.ops[0].dim("batch").size == 6 and graph.batch == 6


class TestViews:
    def test_heads_are_followed_through_the_projection_of_attention(self):
        """(sequence, batch, 3 h) -> q of (batch, heads, sequence, head size), as torchvision does it."""
        sequence, batch, hidden = Atom(5), Atom(2, batch=True), Atom(3 * 6 * 2)
        view = View("qkv", ((sequence,), (batch,), (hidden,)))
        view = select(permute(reshape(view, (5, 2, 3, 12)), (2, 0, 1, 3)), 0)
        view = reshape(transpose(reshape(view, (5, 2 * 6, 2)), 0, 1), (2, 6, 5, 2))
        three, heads, size = hidden.leaves()
        assert view.axes == ((batch,), (heads,), (sequence,), (size,))
        assert (three.size, heads.size, size.size) == (3, 6, 2)

    def test_an_even_share_is_a_split_and_another_slice_remembers_its_axis(self):
        hidden, positions = Atom(12), Atom(10)
        first, second = (narrow(View("a", ((hidden,),)), 0, start, 4) for start in (0, 4))
        assert first.axes == second.axes == ((hidden.leaves()[1],),)
        part = narrow(View("p", ((positions,),)), 0, 0, 7)
        assert part.shape == (7,) and part.axes[0][0] in positions.family()

    def test_a_reshape_that_cuts_the_batch_is_refused(self):
        with pytest.raises(JoulecastError, match="cuts through"):
            regroup([Atom(4, batch=True), Atom(3)], (2, 6))


class TestShipped:
    def test_all_are_sound_and_end_in_a_loss(self):
        assert set(shipped.names()) >= {"vgg16", "vgg19", "resnet50", "inception_v3", "gpt2"}
        for name in shipped.names():
            graph = shipped.op_graph(name)
            assert graph.name == name and graph.batch == 1
            assert graph.ops[-1].kind == "cross_entropy"
            grown = graph.with_batch(8)
            for tensor in graph.tensors.values():
                times = 1 if tensor.role in ("parameter", "buffer") else 8
                assert grown.tensors[tensor.name].elements == times * tensor.elements
            unread = [n for n, t in graph.tensors.items() if not graph.readers[n]]
            assert all(graph.producer[n].kind == "cross_entropy" for n in unread)

    def test_an_unknown_name_names_the_nearest(self):
        with pytest.raises(JoulecastError, match="did you mean `resnet50`"):
            shipped.op_graph("resnet5")

    def test_resnet50_is_what_is_captured_now(self):
        again = benchmark("shipped_graphs").capture_network("resnet50", 224, 16, 1000)
        assert again == shipped.op_graph("resnet50")


def graph_flops(graph) -> int:
    """FLOPs of the forward pass as torch's ``FlopCounterMode`` counts them: the matmul family alone."""
    products = [op for op in graph.ops if KINDS[op.kind] == "matmul"]
    return sum(int(op_work(graph, op, {}, "forward").flops) for op in products)


class TestCapture:
    @pytest.mark.parametrize(("name", "size"), [("resnet50", 64), ("vit_ti", 32)])
    def test_flops_and_parameters_are_those_of_torch(self, name, size):
        from joulecast.measure.workloads.networks import build_empty, forward_flops

        graph = benchmark("shipped_graphs").capture_network(name, size, 16, 10)
        assert graph_flops(graph) == forward_flops(name, size, 16, 10)
        parameters = list(build_empty(name, size, 16, 10).parameters())
        assert sum(t.elements for t in graph.parameters) == sum(p.numel() for p in parameters)
        assert len(graph.parameters) == len(parameters)

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_small_gpt(self, tied):
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        networks = benchmark("shipped_graphs")
        size = networks.GPTSize(
            layers=2, hidden=64, heads=4, vocabulary=100, positions=48, tied=tied
        )
        graph = networks.capture_gpt(size, length=32)
        module = networks.build_gpt(size)
        tokens = torch.zeros(1, 32, dtype=torch.int64, device="meta")
        with FlopCounterMode(display=False) as counter:
            module(tokens)
        assert graph_flops(graph) == counter.get_total_flops()
        assert sum(t.elements for t in graph.parameters) == sum(
            p.numel() for p in module.parameters()
        )
        readers = [op.name for op in graph.readers["token.weight"]]
        assert readers == (["token", "head"] if tied else ["token"])
        embedding = graph.producer["token"]
        assert summary(embedding)["vocab"] == (100, "reduce")
        assert axes_read(graph.producer["add"]) == [
            ("token", ("batch", "sequence", "features")),
            ("position.weight", ("sequence", "features")),
        ]

    def test_attention_reads_the_heads_of_one_projection(self):
        graph = benchmark("shipped_graphs").capture_network("vit_ti", 32, 16, 10)
        attention = next(op for op in graph.ops if op.kind == "attention")
        assert summary(attention) == {
            "batch": (1, "batch"),
            "heads": (3, "other"),
            "query": (5, "opaque"),
            "head_dim": (64, "opaque"),
            "key": (5, "opaque"),
        }
        (qkv,) = {access.tensor for access in attention.reads}
        assert axes_read(attention) == [
            (qkv, ("query", "batch", "heads")),
            (qkv, ("key", "batch", "heads")),
        ]
        assert qkv.endswith("self_attention/linear")
        (out,) = graph.readers[attention.writes[0].tensor]
        assert out.module.endswith("self_attention.out_proj")
        assert axes_read(out)[0][1] == ("batch", "in", "sequence", None)  # heads, then their size

    def test_a_small_network_by_hand(self):
        import torch
        from torch import nn

        from joulecast.graphs.capture import capture

        module = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 1, groups=4, bias=False),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(8 * 4 * 4, 10),
        ).eval()
        graph = capture(module, [torch.zeros(1, 3, 16, 16)], "hand")
        assert not module.training
        kinds = ["conv2d", "batch_norm", "relu", "conv2d", "max_pool", "dropout", "linear"]
        assert [op.kind for op in graph.ops] == [*kinds, "cross_entropy"]
        conv, norm, relu, grouped, _, dropout, linear, loss = graph.ops
        assert summary(conv) == {
            "n": (1, "batch"),
            "cout": (8, "other"),
            "h": (8, "opaque"),
            "w": (8, "opaque"),
            "cin": (3, "reduce"),
            "k1": (3, "opaque"),
            "k2": (3, "opaque"),
        }
        assert conv.name == conv.module == "0" and conv.attributes["stride"] == [2, 2]
        assert axes_read(conv) == [
            ("input", ("n", "cin", "h", "w")),
            ("0.weight", ("cout", "cin", "k1", "k2")),
            ("0.bias", ("cout",)),
        ]
        assert {graph.tensors[a.tensor].role for a in norm.reads} == {
            "activation",
            "parameter",
            "buffer",
        }
        assert relu.attributes == {"inplace": True}
        assert summary(grouped)["cin"] == (8, "opaque") and grouped.attributes["groups"] == 4
        assert axes_read(dropout) == [("4", ("batch", "features", None, None))]
        assert axes_read(linear)[0] == ("6", ("batch", "in"))
        assert summary(loss) == {"batch": (1, "batch"), "classes": (10, "reduce")}
        assert graph.tensors["target"] == Tensor("target", (1,), 8, "input")
        assert Counter(t.role for t in graph.tensors.values())["buffer"] == 2

    def test_an_operator_that_is_not_known_is_named(self):
        import torch
        from torch import nn

        from joulecast.graphs.capture import capture

        module = nn.Sequential(nn.Linear(4, 4), nn.Softshrink())
        with pytest.warns(UserWarning, match=r"odd: only the memory traffic .* softshrink.default"):
            graph = capture(module, [torch.zeros(1, 4)], "odd")
        assert [op.kind for op in graph.ops] == ["linear", "other", "cross_entropy"]
        assert op_work(graph, graph.ops[1], {}, "forward").bytes == 2 * 4 * 4


def entries_of(graph, batches, milliseconds):
    return [
        Entry(db.signature(graph.with_batch(b), op_at(graph, b), "forward"), ms, 5)
        for b, ms in zip(batches, milliseconds, strict=True)
    ]


def op_at(graph, batch):
    return graph.with_batch(batch).ops[0]


class TestDatabase:
    @pytest.fixture
    def graph(self):
        return a_graph()

    @pytest.fixture
    def database(self, graph):
        entries = entries_of(graph, [4, 8, 16], [1.0, 1.4, 2.2])
        entries.append(Entry(db.optimizer_signature(1000), 0.5, 5))
        provenance = {"host": {"cpu": "c", "cores": 2, "memory_bytes": 1}, "threads": 1, "ranks": 2}
        return Database(provenance, tuple(entries))

    def wanted(self, graph, samples, **parts):
        return db.signature(graph.with_batch(samples), op_at(graph, samples), "forward", parts)

    def test_a_measured_shape_is_exact_and_a_part_of_one_is_its_size(self, graph, database):
        assert database.lookup(self.wanted(graph, 8)) == Cost(pytest.approx(1.4e-3), "measured")
        assert database.lookup(self.wanted(graph, 16, batch=2)) == Cost(
            pytest.approx(1.4e-3), "measured"
        )

    def test_between_and_a_little_beyond_it_is_a_line_and_says_so(self, graph, database):
        answer = database.lookup(self.wanted(graph, 12))
        assert answer == Cost(pytest.approx(1.8e-3), "interpolated")
        assert database.lookup(self.wanted(graph, 32)).seconds == pytest.approx(3.8e-3)
        assert database.lookup(self.wanted(graph, 2)).seconds == pytest.approx(0.8e-3)

    def test_far_beyond_or_of_another_kind_it_is_not_known(self, graph, database):
        assert database.lookup(self.wanted(graph, 33)) is None
        assert database.lookup(self.wanted(graph, 1)) is None
        assert database.lookup(self.wanted(graph, 8, out=2)) is None
        backward = replace(self.wanted(graph, 8), direction="backward")
        assert database.lookup(backward) is None

    def test_the_optimizer_is_by_the_byte(self, database):
        assert database.optimizer(1000) == Cost(pytest.approx(0.5e-3), "measured")
        assert database.optimizer(4000) == Cost(pytest.approx(2e-3), "interpolated")
        assert Database({}, ()).optimizer(1000) is None

    def test_it_is_read_as_it_was_written(self, database, tmp_path):
        step = db.StepCheck("small", 4, 2.0, 1.9, 1.95, 0.1, kept=5, dropped=1, waited_share=0.0)
        database = replace(database, steps=(step,))
        database.write(tmp_path / "db.json")
        assert db.read_database(tmp_path / "db.json") == database
        assert step.covered_share == pytest.approx(0.95)
        content = json.loads((tmp_path / "db.json").read_text())
        content["entries"][0]["milliseconds"] = 0
        (tmp_path / "db.json").write_text(json.dumps(content))
        with pytest.raises(JoulecastError, match="is no op database"):
            db.read_database(tmp_path / "db.json")

    def test_costs_fall_back_to_a_roofline_and_are_marked(self, graph, database):
        costs = db.MeasuredCosts(database, Roofline(1e9, 1e9))
        batch = graph.with_batch(8)
        sources = [
            costs.cost(batch, batch.ops[0], parts, direction).source
            for parts, direction in [({}, "forward"), ({"batch": 1.6}, "forward"), ({}, "backward")]
        ]
        assert sources == ["measured", "interpolated", "roofline"]
        assert costs.optimizer(2000).source == "interpolated"


class TestProfile:
    def test_more_ranks_than_cores_are_refused(self):
        from joulecast.graphs.measure_ops import measure_database

        with pytest.raises(JoulecastError, match=f"by 1 to {usable_cores()} ranks"):
            measure_database("resnet18", 32, 16, 10, [2], usable_cores() + 1)

    def test_every_op_of_a_step_is_timed_forward_and_backward(self):
        import torch
        from torch import nn

        from joulecast.graphs.instrumented import TimedNetwork
        from joulecast.graphs.measure_ops import tabulated, time_steps

        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
        )
        network = TimedNetwork(module, torch.randn(6, 3, 8, 8), 5, "tiny")
        entries, check = tabulated(network.graph, time_steps(network, 3), 3)
        timed = {(entry.signature.kind, entry.signature.direction) for entry in entries}
        kinds = [op.kind for op in network.graph.ops]
        assert timed == {(kind, d) for kind in kinds for d in ("forward", "backward")} | {
            ("sgd", "forward")
        }
        assert all(entry.milliseconds > 0 and entry.samples == 3 for entry in entries)
        assert check.batch == 6 and check.whole_s > 0 and check.optimizer_s > 0
        assert check.kept == 3 and check.dropped == 0 and check.timed_s >= 0
        without = [entry for entry in entries if entry.signature.kind != "sgd"]
        assert check.ops_s == pytest.approx(sum(e.milliseconds for e in without) / 1e3)
        answer = Database({}, entries).lookup(
            db.signature(network.graph, network.graph.ops[0], "backward")
        )
        assert answer.source == "measured"
