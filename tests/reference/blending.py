"""Prints which data set each sample of a blend comes from: Megatron's build_blending_indices in the
plainest Python. The figures stand in batches_test.c.

    python3 blending.py 0.6,0.3,0.1 20
"""

import sys

weights = [float(x) for x in sys.argv[1].split(",")]
weights = [w / sum(weights) for w in weights]
taken = [0] * len(weights)
chosen = []
for i in range(int(sys.argv[2])):
    behind = [w * max(i, 1.0) - t for w, t in zip(weights, taken)]
    best = behind.index(max(behind))
    chosen.append(best)
    taken[best] += 1
print(*chosen, sep=", ")
