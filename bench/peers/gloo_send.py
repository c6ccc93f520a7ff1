#!/usr/bin/env python3
"""Bulk over gloo from one site to another, as a peer for bench/links: the second prints bits a second as JSON, and the first sends
until it is killed.

  gloo_send.py ADDRESS-OF-THE-FIRST WARM-SECONDS SECONDS 0|1
"""
import json
import os
import sys
import time
from collections import deque

import torch
import torch.distributed as dist

ELEMENTS = 1 << 20  # of four bytes, as much as a message of the other sides
AHEAD = 8


def send():
    data, out = torch.ones(ELEMENTS), deque()
    while True:
        out.append(dist.isend(data, 1))
        if len(out) == AHEAD:
            out.popleft().wait()


def take(warm, seconds):
    rooms = [torch.empty(ELEMENTS) for _ in range(AHEAD)]
    due, turn, taken, begin = deque(), 0, 0, None
    first = time.monotonic()
    while True:
        while len(due) < AHEAD:
            due.append(dist.irecv(rooms[turn % AHEAD], 0))
            turn += 1
        due.popleft().wait()
        now = time.monotonic()
        if begin is not None:
            taken += 4 * ELEMENTS
        if begin is None and now > first + warm:
            begin = now
        if begin is not None and taken > 0 and now > begin + seconds:
            return 8 * taken / (now - begin)


if __name__ == "__main__":
    address, rank = sys.argv[1], int(sys.argv[4])
    os.environ.update(MASTER_ADDR=address, MASTER_PORT="29512")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    if rank == 0:
        send()
    print(json.dumps({"bits_per_second": take(float(sys.argv[2]), float(sys.argv[3]))}), flush=True)
    os._exit(0)  # the other end still sends
