"""Makes the reference orders of tests/data/data: Megatron's GPTDataset rules with numpy's own generator.

    python gptdataset.py made OUT.json              the lengths that samples_test.c writes
    python gptdataset.py pair PREFIX OUT.json       a .bin/.idx pair

Written from the description of the rules, with none of Longhaul's code; needs numpy.
"""

import hashlib
import json
import struct
import sys

import numpy

SEPARATE_BELOW = 0.80


def split_bounds(text, count):
    shares = [float(x) for x in text.split(",")]
    shares = [x / sum(shares) for x in shares]
    bounds, at = [0], 0.0
    for share in shares:
        at += share
        bounds.append(int(round(at * float(count))))
    return list(zip(bounds[:-1], bounds[1:]))


def order(lengths, first, end, sequence, wanted, seed):
    per_epoch = int(sum(int(x) for x in lengths[first:end]))
    epochs = 1
    if wanted is not None:
        while epochs * per_epoch < wanted * sequence + 1:
            epochs += 1
    separate, before_last = False, None
    if epochs > 1:
        before_last = ((epochs - 1) * per_epoch - 1) // sequence
        from_last = wanted - before_last
        separate = from_last < int(SEPARATE_BELOW * ((per_epoch - 1) // sequence))

    random = numpy.random.RandomState(seed)

    def shuffled(times):
        documents = numpy.tile(numpy.arange(first, end, dtype=numpy.int32), times)
        random.shuffle(documents)
        return documents

    if separate:
        documents = numpy.concatenate([shuffled(epochs - 1), shuffled(1)])
    else:
        documents = shuffled(epochs)

    count = (epochs * per_epoch - 1) // sequence
    cuts = [(0, 0)]
    place = offset = 0
    for _ in range(count):
        left = sequence + 1
        while left > 0:
            here = int(lengths[documents[place]]) - offset
            left -= here
            if left <= 0:
                offset += left + here - 1
            else:
                place += 1
                offset = 0
        cuts.append((place, offset))

    def shuffled_range(begin, stop):
        rows = numpy.arange(begin, stop, dtype=numpy.uint32)
        random.shuffle(rows)
        return rows

    if separate:
        shuffle = numpy.concatenate([shuffled_range(0, before_last), shuffled_range(before_last, count)])
    else:
        shuffle = shuffled_range(0, count)
    facts = {"tokens_per_epoch": per_epoch, "num_epochs": epochs, "separate_final_epoch": separate,
             "num_samples": count}
    return facts, documents, numpy.array(cuts, dtype=numpy.int32), shuffle


def sample(starts, tokens, lengths, documents, cuts, row):
    (place, offset), (last_place, last_offset) = cuts[row], cuts[row + 1]
    out = []
    for at in range(place, last_place + 1):
        document = documents[at]
        begin = offset if at == place else 0
        end = last_offset + 1 if at == last_place else int(lengths[document])
        out.append(tokens[starts[document] + begin:starts[document] + end])
    return numpy.concatenate(out)


def entry(array):
    return {"length": len(array), "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            "first": array[:8].tolist(), "last": array[-4:].tolist()}


def case(lengths, tokens, name, split, part, sequence, wanted, seed):
    bounds = split_bounds(split, len(lengths))[("train", "valid", "test").index(part)]
    facts, documents, cuts, shuffle = order(lengths, *bounds, sequence, wanted, seed)
    starts = numpy.concatenate([[0], numpy.cumsum(lengths.astype(numpy.int64))])
    samples = []
    for i in (0, 1, 2, len(shuffle) - 1):
        ids = sample(starts, tokens, lengths, documents, cuts, int(shuffle[i])).astype(numpy.int64)
        assert len(ids) == sequence + 1
        samples.append({"i": i, "first_8": ids[:8].tolist(),
                        "sha256": hashlib.sha256(ids.tobytes()).hexdigest()})
    return {"name": name, "split": split, "part": part, "documents": list(bounds),
            "sequence_length": sequence, "num_samples_requested": wanted, "seed": seed, **facts,
            "document_index": entry(documents), "sample_index": entry(cuts),
            "shuffle_index": entry(shuffle), "samples": samples}


def made():
    """As write_set() of samples_test.c: lengths in a pattern, ids counting up."""
    lengths = numpy.array([1 + (d * 37) % 200 for d in range(1000)], dtype=numpy.int32)
    return lengths, numpy.arange(int(lengths.sum()), dtype=numpy.int64) % 50000


def pair(prefix):
    raw = open(prefix + ".idx", "rb").read()
    assert raw[:9] == b"MMIDIDX\0\0"
    _, code, sequences, _ = struct.unpack_from("<QBQQ", raw, 9)
    lengths = numpy.frombuffer(raw, dtype="<i4", count=sequences, offset=34)
    return lengths, numpy.fromfile(prefix + ".bin", dtype={8: "<u2", 4: "<i4"}[code])


CASES = [
    ("under one epoch", "969,30,1", "train", 64, 100, 1234),
    ("one epoch, no count asked", "969,30,1", "train", 64, None, 1234),
    ("valid, one epoch", "969,30,1", "valid", 32, None, 1234),
    ("a last epoch of its own", "969,30,1", "train", 64, 3500, 1234),
    ("a last epoch like the others", "969,30,1", "train", 64, 4500, 1234),
    ("a last epoch used to just under 80 per cent", "969,30,1", "train", 64, 4260, 1234),
    ("a last epoch used to 80 per cent", "969,30,1", "train", 64, 4261, 1234),
    ("another seed and split", "8,1,1", "train", 257, 2000, 42),
    ("long samples over many sequences", "1,0,0", "train", 4096, 200, 7),
]


def main():
    facts = {"how": "tests/reference/gptdataset.py with numpy " + numpy.__version__}
    cases = CASES
    if sys.argv[1] == "made":
        lengths, tokens = made()
    else:
        lengths, tokens = pair(sys.argv[2])
        cases = [(*head, wanted and wanted * 4, seed) for *head, wanted, seed in CASES]
        for kind in ("bin", "idx"):
            content = open(sys.argv[2] + "." + kind, "rb").read()
            facts[kind + "_sha256"] = hashlib.sha256(content).hexdigest()
    facts["cases"] = [case(lengths, tokens, name, *rest) for name, *rest in cases]
    with open(sys.argv[-1], "w") as out:
        json.dump(facts, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
