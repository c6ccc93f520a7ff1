#!/usr/bin/env python3
"""Encodes the documents of a JSONL file by a peer's tokenizer on one core, as bench/tokenizer_speed.c does ours: prints
one JSON line with MB/s of the first pass and of the best, seconds to load, and the tokens of a pass.

  encode.py tokenizers|tiktoken|sentencepiece TOKENIZER FILE.jsonl [passes=5]

A TOKENIZER is what Longhaul takes: tokenizer.json, tokenizer.model, tiktoken ranks, or a vocab.json whose merges.txt
lies beside it."""
import base64, json, os, sys, time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def byte_of_letter():
    """GPT-2's letters for bytes, backwards."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{chr(b): b for b in plain}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def with_tokenizers(path):
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    if path.endswith("vocab.json"):
        tokenizer = ByteLevelBPETokenizer(path, path.replace("vocab.json", "merges.txt"))
    else:
        tokenizer = Tokenizer.from_file(path)
    return lambda texts: sum(len(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False))


def with_tiktoken(path):
    import tiktoken
    if path.endswith(".json"):
        back = byte_of_letter()
        with open(path, encoding="utf-8") as f:
            vocab = json.load(f)
        vocab = vocab["model"]["vocab"] if "model" in vocab else vocab
        # Special tokens have no merges; their letters may not be bytes' letters either.
        ranks = {bytes(back[c] for c in token): i for token, i in vocab.items() if not token.startswith("<|")}
        pattern = GPT2
    else:
        with open(path, "rb") as f:
            rows = [line.split() for line in f if line.strip()]
        ranks, pattern = {base64.b64decode(token): int(rank) for token, rank in rows}, LLAMA3
    encoding = tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts)


def with_sentencepiece(path):
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return lambda texts: sum(len(processor.encode(text)) for text in texts)


LIBRARIES = {"tokenizers": with_tokenizers, "tiktoken": with_tiktoken, "sentencepiece": with_sentencepiece}


def main():
    library, path, corpus = sys.argv[1:4]
    passes = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    with open(corpus, encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    size = sum(len(text.encode()) for text in texts)
    begin = time.perf_counter()
    encode = LIBRARIES[library](path)
    load = time.perf_counter() - begin
    encode(["a"])
    rates = []
    for _ in range(passes):
        begin = time.perf_counter()
        tokens = encode(texts)
        rates.append(size / (time.perf_counter() - begin) / 1e6)
    print(json.dumps({"load_s": load, "first_mb_per_s": rates[0], "best_mb_per_s": max(rates), "tokens": tokens, "bytes": size}))


main()
