"""The column of a framework's own client in the table of programs and clients."""

from __future__ import annotations

import dataclasses

import pytest

from tests.graph_programs import captured
from xlacompare import frameworks, program
from xlacompare.graph import clients, program_file
from xlacompare.launch import own_clients


@pytest.fixture
def programs(tmp_path):
    """One that is right and one whose values are not those of its framework."""
    off = captured()
    off.expected[0][0, 0] += 1.0
    for name, made in (("right", captured()), ("wrong", off)):
        program_file.save(made, tmp_path / name)
    return [tmp_path / name for name in ("right", "wrong")]


def test_whose_xla_is_jaxlibs_has_no_column_of_its_own():
    assert frameworks.own_clients() == ["torch_xla"]


def test_framework_that_is_not_installed_is_absent(monkeypatch, tmp_path):
    """The reason stands in the table, nothing is started, and nothing failed."""
    lacking = dataclasses.replace(frameworks.FRAMEWORKS["torch_xla"], requires=("no_such_package",))
    monkeypatch.setitem(frameworks.FRAMEWORKS, "torch_xla", lacking)
    monkeypatch.setattr(own_clients.Own, "__init__", lambda *_: pytest.fail("started"))
    with own_clients.columns([tmp_path / "p"], 30.0) as own:
        table = clients.measure([tmp_path / "p"], own, clients.Plan(launches=1))
    (entry,) = table.values()
    assert entry.absent.startswith("framework 'torch_xla' needs no_such_package") and not entry.problem
    assert entry.estimate() is None
    assert "absent: framework 'torch_xla' needs" in program.clients_text(table)


@pytest.mark.framework("torch_xla")
def test_torch_xla_beside_jaxlib(programs):
    """Values are checked there too; a program that is refused takes no other with it."""
    plan = clients.Plan(launches=2, cell_s=0.02, min_block_s=0.002, deadline_s=60.0, cores=clients.default_cores())
    with own_clients.columns(programs, 60.0) as own:
        table = clients.measure(programs, [*clients.readers([]), *own], plan)
    rows = {(name, library.split()[0]): entry for (name, library), entry in table.items()}
    right = rows["right", "torch_xla"]
    assert right.client.startswith("torch_xla 2.")
    assert len(right.launches) == 2 and right.n == rows["right", clients.JAXLIB].n
    assert right.estimate().ratio()[0] > 0 and right.worst <= 1.0
    assert rows["wrong", "torch_xla"].estimate() is None
    assert "computes other values: logits" in rows["wrong", "torch_xla"].problem
    text = program.clients_text(table)
    assert "  torch_xla 2." in text and text.count("values within") == 2
