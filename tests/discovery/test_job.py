"""Discovery from inside a job: what ranks tell, made a hierarchy; and real ranks that tell it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from meshwright.discovery.assemble import Discovery, assemble
from meshwright.discovery.job import Told, job_topology, ranks_in_order
from meshwright.errors import EngineError, SpecError
from meshwright.measure.here import numa_node
from meshwright.measure.peers.peers import Peers, job_engine
from meshwright.measure.probing import measure_job
from meshwright.runtime.launch import find_program, mpirun_command
from meshwright.runtime.slurm import first_host, with_slurm
from meshwright.text.units import parse_bandwidth
from tests.cli.test_verbs import run
from tests.discovery.test_files import FILES
from tests.ranks import results, run_ranks

SLURM = "spine.leaf{leaf}.n{host}.cluster.local"


def job(leaves: dict[int, int], each: int = 1) -> list[Told]:
    """Ranks one after another on hosts, which are on leaves."""
    return [
        Told(f"n{host}.cluster.local", SLURM.format(leaf=leaf, host=host), "switch.switch.node")
        for host, leaf in leaves.items()
        for _ in range(each)
    ]


def shape(found: Discovery) -> dict[str, int]:
    return {level.name: level.count for level in found.system.levels}


def test_slurm_tells_the_switches_above_each_host() -> None:
    told = job({1: 1, 2: 2, 3: 2, 4: 1}, each=2)
    found = assemble([job_topology(told)])
    assert shape(found) == {"leaf": 2, "node": 2, "rank": 2}
    assert found.hosts == tuple(f"n{k}.cluster.local" for k in (1, 4, 2, 3))
    assert ranks_in_order(told, found.hosts) == [0, 1, 6, 7, 2, 3, 4, 5]


def test_a_host_that_tells_less_and_a_leaf_with_fewer_hosts_are_named() -> None:
    told = job({1: 1, 2: 1, 3: 2, 4: 2, 5: 1})
    told[4] = replace(told[4], address="", pattern="")
    found = assemble([job_topology(told)])
    assert shape(found) == {"leaf": 2, "node": 2}
    assert found.irregular == ("n5.cluster.local has no SLURM_TOPOLOGY_ADDR, unlike n1.cluster.local",)
    found = assemble([job_topology(job({1: 1, 2: 1, 3: 1, 4: 2, 5: 2}))])
    assert found.irregular == ("leaf2 has 2 nodes, the usual leaf has 3",)
    assert shape(found) == {"leaf": 2, "node": 2}


def test_blocks_of_slurm() -> None:
    told = [Told(f"n{k}", f"b{k // 2}.n{k}", "block.node") for k in range(4)]
    assert shape(assemble([job_topology(told)])) == {"block": 2, "node": 2}


def test_gpus_and_their_links_if_ranks_and_gpus_match() -> None:
    matrix = (FILES / "h100-smi.txt").read_text()
    hosts = [Told(host, matrix=matrix * (not k)) for host in ("a", "b") for k in range(8)]
    found = assemble([job_topology(hosts)])
    assert shape(found) == {"node": 2, "gpu": 8}
    assert found.system.levels[1].link.bypass
    alone = assemble([job_topology([Told(host, matrix=matrix) for host in ("a", "b")])])
    assert alone.system.levels == found.system.levels
    fewer = assemble([job_topology([one for k, one in enumerate(hosts) if k % 8 < 3])])
    assert shape(fewer) == {"node": 2, "rank": 3}
    assert "a has 8 GPUs and 3 ranks, so how its GPUs are linked is not used" in fewer.notes
    broken = assemble([job_topology([replace(one, matrix=one.matrix[:200]) for one in hosts])])
    assert any(note.startswith("what links GPUs is not known") for note in broken.notes)


def test_numa_nodes_and_slices() -> None:
    told = [Told(f"n{k // 4}", numa=k % 4 // 2, slice=k // 8) for k in range(16)]
    assert shape(assemble([job_topology(told)])) == {"slice": 2, "node": 2, "numa": 2, "rank": 2}


def test_chips_of_jax() -> None:
    chips = [tuple((x, y, z) for x in range(2) for y in range(2)) for z in range(4)]
    told = [Told(f"w{k}", slice=k // 4, chips=chips[k % 4]) for k in range(8)]
    found = assemble([job_topology(told)])
    assert shape(found) == {"slice": 2, "node": 4, "chip": 4}
    (note,) = found.notes
    assert note.startswith("the chips of a slice are 2 x 2 x 4, wired as rings")
    assert not job_topology(told[:7]).notes
    assert shape(assemble([job_topology([Told("a", chips=((), ())), Told("b", chips=((), ()))])])) == {
        "node": 2,
        "chip": 2,
    }
    assert "leave out --engine jax" in run("discover", "--measure", "--engine", "jax").stderr


def test_the_numa_node_of_processors(tmp_path: Path) -> None:
    assert numa_node({0}, tmp_path) is None
    for node, cpus in enumerate(("0-3,8", "4-7")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert numa_node({2, 8}, tmp_path) == 0
    assert numa_node({5}, tmp_path) == 1
    assert numa_node({3, 4}, tmp_path) is None


def test_which_library_ranks_talk_through() -> None:
    assert job_engine({}) is None
    assert job_engine({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n1"}) == "torch"
    assert job_engine({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}) == "torch"
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert job_engine(batch) is None  # in a script of sbatch; what it starts with srun has a step too
    assert job_engine(batch | {"SLURM_STEP_ID": "0"}) == "torch"
    with pytest.raises(EngineError, match="cannot read the hosts that Slurm names"):
        with_slurm({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1"})
    refused = run("discover")
    assert refused.exit_code == 2
    assert "or start this in every rank of a job" in refused.stderr


def test_ranks_meet_on_the_host_of_rank_0_also_if_a_file_spreads_them(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    step = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "n[1-4]", "SLURM_JOB_ID": "10007"}
    step["SLURM_STEP_ID"] = "0"
    spread = step | {"SLURM_DISTRIBUTION": "arbitrary", "SLURM_HOSTFILE": str(ranks)}
    for given, expected in ((step, "n1"), (step | {"SLURM_DISTRIBUTION": "cyclic"}, "n1"), (spread, "n3")):
        ranks.write_text("n3\nn1\nn4\nn2\n")
        found = dict(given)
        with_slurm(found)
        assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["RANK"]) == (expected, "20007", "1")
    ranks.write_text("n4*2\nn3*2\n")
    assert first_host(spread) == "n4"
    named = spread | {"SLURM_HOSTFILE": str(tmp_path / "none"), "MASTER_ADDR": "n2"}
    with_slurm(named)
    assert named["MASTER_ADDR"] == "n2"
    ranks.write_text("")
    for wrong, message in (
        (spread, r"SLURM_HOSTFILE=.*ranks is empty; set MASTER_ADDR"),
        (
            spread | {"SLURM_HOSTFILE": str(tmp_path / "none")},
            r"cannot read SLURM_HOSTFILE=.*none: .*; set MASTER_ADDR",
        ),
        (
            spread | {"SLURM_HOSTFILE": ""},
            "with --distribution=arbitrary, SLURM_HOSTFILE would say it; set MASTER_ADDR",
        ),
    ):
        with pytest.raises(
            EngineError, match=f"the host of rank 0 is not known, where the ranks are to meet: {message}"
        ):
            with_slurm(wrong)


def test_ranks_of_pytorch_tell_where_they_are(tmp_path: Path) -> None:
    out = tmp_path / "system.yaml"
    hosts = ["n3", "n1", "n4", "n2"]
    arguments = ("--out", str(out), "--hosts-out", str(tmp_path / "hosts"))
    (code, document, said), *others = results(
        "tests.discovery.injob:discovered", 4, hosts, "s.l{half}.{host}", *arguments
    )
    assert code == 0, said
    assert others == [(0, None, "")] * 3
    assert [(level["name"], level["count"]) for level in document["system"]["levels"]] == [
        ("leaf", 2),
        ("node", 2),
    ]
    assert document["ranks"] == [0, 1, 2, 3]
    assert out.read_text().startswith("# Discovered from the job.\n")
    assert (tmp_path / "hosts").read_text() == "n3\nn1\nn4\nn2\n"


def test_one_rank_alone_has_nothing_to_measure() -> None:
    with pytest.raises(SpecError, match="there is one rank only"):
        measure_job(cast(Peers, SimpleNamespace(rank=0, size=1)), [])


def test_ranks_that_cannot_reach_each_other_say_so() -> None:
    first, second = results("tests.discovery.injob:cut_off", 2)
    for rank, (code, said) in enumerate((first, second)):
        assert code == 3
        assert said.startswith(f"Error: rank {rank} of 2 cannot meet the others at 127.0.0.1:")
        assert said.count("\n") == 1


def test_a_rank_that_dies_is_named_by_rank_0_alone() -> None:
    first, second, third = run_ranks("tests.discovery.injob:one_dies", 3, 1)
    assert second.status == 9
    assert third.result == (3, "")
    code, said = first.result
    assert code == 3
    assert said.startswith("Error: rank 1 died or hung: hearing from all ranks failed")
    assert said.count("\n") == 1


def test_a_rank_that_is_slow_is_not_named_beside_one_that_died(tmp_path: Path) -> None:
    first, second, third = run_ranks("tests.discovery.injob:one_is_slow", 3, str(tmp_path))
    assert second.status == 9
    assert third.result == (3, "")
    code, said = first.result
    assert code == 3
    assert said.startswith("Error: rank 1 died or hung: hearing from all ranks failed")


def test_a_rank_that_is_stopped_is_named_and_one_that_has_left_is_not() -> None:
    first, _, third = run_ranks("tests.discovery.injob:one_stops", 3)
    assert third.result == (0, "")
    code, said = first.result
    assert code == 3
    assert said.startswith("Error: rank 1 died or hung: hearing from all ranks failed")


def test_ranks_of_mpi_tell_where_they_are() -> None:
    if find_program("mpirun") is None:
        pytest.skip("mpirun is not installed")
    command = [*mpirun_command(2), sys.executable, "-m", "meshwright", "discover", "--measure", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (level,) = document["system"]["levels"]
    assert (level["name"], level["count"]) == ("rank", 2)
    assert parse_bandwidth(level["bandwidth"]) > 0
    assert document["sources"] == {"rank": "measured"}
    assert document["measured"]["levels"][0]["groups"] == [[0], [1]]
