import random
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dflash import compiling
from dflash.compiling import CompilationWarning
from dflash.contract.config import load_config
from dflash.target import Target, load_target
from dflash.target_body import compile_layers, copy_to, cut

cpu = torch.device("cpu")
varlen = load_config(None, ["target.attention=varlen"])


@pytest.fixture
def graphs(monkeypatch):
    """What is compiled, by a backend that takes graphs as they are."""
    found = []

    def backend(graph, _inputs):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(compiling, "backend", backend)
    return found


@pytest.fixture(scope="module")
def plain():
    return Target(load_target(varlen), cpu)


def make_compiled():
    return Target(load_target(varlen.replacing({"target.compile": "on"})), cpu)


def make_documents(*lengths, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(4000) for _ in range(n)] for n in lengths]


def flat_batch(make_batch, *lengths):
    return make_batch(make_documents(*lengths), [[] for _ in lengths], 4)


def test_what_lies_past_the_last_tap_is_dropped():
    body = load_target(varlen).body
    cut(body, 2)
    assert len(body.layers) == 2
    assert body.config.num_hidden_layers == len(body.config.layer_types) == 2
    assert isinstance(body.norm, nn.Identity)


def test_a_copy_shares_nothing_and_asks_for_no_gradient():
    body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    copied = copy_to(body, cpu)
    for name, tensor in [*body.named_parameters(), *body.named_buffers()]:
        other = copied.get_parameter(name) if isinstance(tensor, nn.Parameter) else copied.get_buffer(name)
        assert torch.equal(tensor, other)
        assert tensor.data_ptr() != other.data_ptr()
    assert not any(p.requires_grad for p in copied.parameters())


def test_compiled_layers_give_the_taps_of_plain_ones(plain, graphs, make_batch):
    target, batch = make_compiled(), flat_batch(make_batch, 20, 3, 31, 1)
    assert torch.equal(target.forward(batch), plain.forward(batch))
    assert graphs


def test_one_graph_serves_all_layers_and_all_flat_batches(plain, graphs, make_batch):
    """C117: lengths and numbers of documents that differ in every batch."""
    target, rng = make_compiled(), random.Random(0)
    for count in range(1, 31):
        lengths = [rng.randrange(2, 40) for _ in range(count)]
        target.forward(flat_batch(make_batch, *lengths))
    assert len(graphs) == 1
    assert [function.failure for function in target.compiled] == [None]


def test_graphs_for_other_rows_are_few(plain, graphs, make_batch):
    target, rng = make_compiled(), random.Random(0)
    for count in range(2, 12):
        lengths = [rng.randrange(2, 40) for _ in range(count)]
        documents = make_documents(*lengths)
        batch = make_batch(documents, [[]] * count, 4, packed=False)
        torch.testing.assert_close(target.forward(batch), plain.forward(batch), rtol=1e-5, atol=1e-5)
    assert len(graphs) <= 2


def test_each_target_has_graphs_of_its_own(graphs, make_batch):
    batch = flat_batch(make_batch, 5, 7)
    for count in range(1, 4):
        make_compiled().forward(batch)
        assert len(graphs) == count


class Mixed(nn.Module):
    """A decoder with layers of two kinds."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(layer_types=["linear_attention", "full_attention"] * 2)
        self.layers = nn.ModuleList([Recurrent() if i % 2 == 0 else nn.Linear(2, 2) for i in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(2, 2)

    def forward(self, x):
        return self.mlp(torch.from_numpy(x.detach().numpy()).cumsum(0))  # what no compiler looks into


def test_each_kind_of_layer_is_compiled_once_and_of_recurrent_ones_the_mlp(graphs):
    body, x = Mixed(), torch.randn(3, 2)
    with torch.no_grad():
        expected = body(x)
        functions = compile_layers(body)
        torch.testing.assert_close(body(x), expected)
        body(torch.randn(5, 2))
    assert len(functions) == len(graphs) == 2
    assert [function.failure for function in functions] == [None, None]


def test_a_compiler_that_fails_leaves_the_target_right_and_says_so(plain, monkeypatch, make_batch):
    def broken(_graph, _inputs):
        raise OSError("no C compiler found")

    monkeypatch.setattr(compiling, "backend", broken)
    target, batch = make_compiled(), flat_batch(make_batch, 5, 7)
    with pytest.warns(CompilationWarning, match="no C compiler found") as told:
        assert torch.equal(target.forward(batch), plain.forward(batch))
    assert len(told) == 1


def test_compiled_targets_run_at_once_in_threads_beside_traces(plain, graphs, make_batch, monkeypatch):
    """C108 with whole targets, whose modules a trace breaks as well."""
    monkeypatch.setattr(torch.fx.Tracer, "trace", torch.fx.Tracer.trace)  # put back afterwards
    compiling.guard_traces()
    batches = [flat_batch(make_batch, 9 + 4 * i, 5) for i in range(3)]
    expected = [plain.forward(batch) for batch in batches]
    targets = [make_compiled() for _ in batches]
    for target, batch in zip(targets, batches, strict=True):
        target.forward(batch)
    wrong, over = [], threading.Event()

    def run(target, batch, wanted):
        try:
            wrong.extend("other taps" for _ in range(15) if not torch.equal(target.forward(batch), wanted))
        except Exception as error:  # noqa: BLE001 - whatever it is
            wrong.append(repr(error))

    def trace():
        module = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)])
        while not over.is_set():
            torch.fx.symbolic_trace(module)

    tracer = threading.Thread(target=trace)
    runners = [
        threading.Thread(target=run, args=each) for each in zip(targets, batches, expected, strict=True)
    ]
    for thread in (tracer, *runners):
        thread.start()
    for runner in runners:
        runner.join()
    over.set()
    tracer.join()
    assert wrong == []
