"""The command line of torchrun for every host: the order of hosts, and the node rank of each."""

from meshwright.export.hosts import filled_in_turn, seats_of
from meshwright.export.request import Exported, Request

PORT = 29500
"""The port at which the hosts meet: torchrun's default."""


def torchrun(request: Request) -> Exported:
    """A command for each host, in the order of node ranks; where GPUs are in another order, the command says it."""
    seats = seats_of(request)
    lines = []
    for number, (host, positions) in enumerate(filled_in_turn(seats, "torchrun").items()):
        gpus = "" if positions == sorted(positions) else f"CUDA_VISIBLE_DEVICES={','.join(map(str, positions))} "
        lines += [
            f"# on {host}: ranks {number * len(positions)} to {(number + 1) * len(positions) - 1}",
            f"{gpus}torchrun --nnodes={len(seats) // len(positions)} --nproc-per-node={len(positions)} "
            f"--node-rank={number} --master-addr={seats[0].host} --master-port={PORT} train.py",
        ]
    elastic = "with a rendezvous backend like c10d instead of --master-addr, torchrun numbers the hosts itself"
    return Exported("".join(f"{line}\n" for line in lines), (elastic,))
