"""A plain loop over torch's all_reduce on gloo: what a user would write, sharing no code with xlacompare.

    python torch_gloo.py RANK SIZE PORT

One process per rank; says "ready" when all are there. Each reads lines "BYTES N" from standard input, and after a
barrier N times copies BYTES of float32 and reduces the copy (the library reduces in place, and the input is kept); it
answers with the seconds that all of them took; the end of the input ends it. Every rank must get the same lines. Lines
that are no number ("[Gloo] ...") are the library's.
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def main(rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    buffers = {}
    print("ready", flush=True)
    for line in sys.stdin:
        nbytes, n = map(int, line.split())
        if nbytes not in buffers:
            buffers[nbytes] = torch.ones(nbytes // 4), torch.ones(nbytes // 4)
            dist.all_reduce(buffers[nbytes][1])
        kept, tensor = buffers[nbytes]
        dist.barrier()
        start = time.perf_counter()
        for _ in range(n):
            tensor.copy_(kept)
            dist.all_reduce(tensor)
        print(time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
