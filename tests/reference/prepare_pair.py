"""Makes a .bin/.idx pair from JSONL as Megatron's preprocess_data --append-eod does, with Hugging Face's
tokenizer and none of Longhaul's code.

    python prepare_pair.py vocab.json merges.txt IN.jsonl OUT_PREFIX
"""

import json
import struct
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

vocab, merges, source, prefix = sys.argv[1:]
tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
eod = json.load(open(vocab))["<|endoftext|>"]

lengths, boundaries = [], [0]
with open(source) as lines, open(prefix + ".bin", "wb") as out:
    for line in lines:
        ids = tokenizer.encode(json.loads(line)["text"]).ids
        if ids:
            ids.append(eod)
            lengths.append(len(ids))
        boundaries.append(len(lengths))
        out.write(struct.pack("<%dH" % len(ids), *ids))

offsets = [0]
for length in lengths[:-1]:
    offsets.append(offsets[-1] + 2 * length)
with open(prefix + ".idx", "wb") as out:
    out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(boundaries)))
    out.write(struct.pack("<%di" % len(lengths), *lengths))
    out.write(struct.pack("<%dq" % len(offsets), *offsets))
    out.write(struct.pack("<%dq" % len(boundaries), *boundaries))
