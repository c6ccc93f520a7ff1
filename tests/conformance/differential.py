#!/usr/bin/env python3
"""Compares our tokenizers with Hugging Face's tokenizers, sentencepiece and tiktoken on random Unicode.

    differential.py ENCODE_IDS [ROUNDS] [SEED]

Skips (77) what is not there: the Python packages (those of make peers are found), and the tokenizer files under
LONGHAUL_REFERENCE.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

SKIPPED = 77
HERE = os.path.dirname(os.path.abspath(__file__))
SHIPPED = os.path.join(HERE, "..", "data")
REFERENCE = os.environ.get("LONGHAUL_REFERENCE")
PEERS = os.environ.get("LONGHAUL_PEERS", os.path.join(HERE, "..", "..", "build", "peers", "bin", "python"))

# ranges of code points that tokenizers treat differently; assigned since Unicode 13 at the latest
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0x00, 0x20), (0x80, 0x24F), (0x2B0, 0x36F), (0x370, 0x52F),
          (0x5D0, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5B), (0x1100, 0x11FF), (0x1680, 0x1680), (0x180E, 0x180E),
          (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20BF), (0x2150, 0x218B), (0x2200, 0x22FF),
          (0x2460, 0x24FF), (0x2581, 0x2581), (0x3000, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFA2D),
          (0xFB00, 0xFB06), (0xFE00, 0xFE0F), (0xFF01, 0xFF5E), (0xFFFD, 0xFFFD), (0x10000, 0x1003F), (0x1D7CE, 0x1D7FF),
          (0x1F300, 0x1F6D7), (0x20000, 0x20040), (0xE0001, 0xE0020), (0xE000, 0xE010)]
WORDS = ["'s", "'S", "'\u017f", "'re", "'LL", "'Ve", "don't", " the", "The", "hello", "  ", "   ", "\n\n", "\r\n", " \n ", "\t",
         "\u00a0", "\u3000", "123", "1234567", "\u00bd", "\u00b2", "\u0664\u0665", "...", "!?", " $", "e\u0301", "\u00e9", "\u0301",
         "<|endoftext|>", "<s>", "</s>", "<unk>", "\u2581", "\u2581\u2581", " \u2581", "<0x41>", "[INST]", "[/INST]",
         "\u1112\u1161\u11ab", "\uac00", "http://a.b/c?d=1", "x=[1,2];", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\ufeff"]


def random_text(random_):
    parts = []
    for _ in range(random_.randint(0, 30)):
        kind = random_.random()
        if kind < 0.4:
            parts.append(random_.choice(WORDS))
        else:
            low, high = random_.choice(RANGES)
            for _ in range(random_.randint(1, 6)):
                c = chr(random_.randint(low, high))
                # U+061D: punctuation since Unicode 14, which Hugging Face's table of punctuation does not know
                if unicodedata.category(c) != "Cn" and c not in "\0\u061d":
                    parts.append(c)
        if random_.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


# scripts whose words have no spaces between them, so that pieces are long: the common characters of each
KANA = "\u306e\u306b\u3092\u306f\u304c\u3068\u3057\u3066\u3067\u305f\u308b\u3044\u306a\u3042\u3063\u304b\u3089\u308a\u308c\u3082"
HANZI = "\u4e00\u4e86\u662f\u6211\u4e0d\u5728\u4eba\u4eec\u6709\u6765\u4ed6\u8fd9\u4e0a\u7740\u4e2a\u5730\u5230\u5927\u65e5\u672c\u8a9e\u732b\u56fd\u4f1a"
EMOJI = "\U0001f600\U0001f469\u200d\U0001f52c\U0001f3fd\U0001f1ef\U0001f1f5\u2764\ufe0f\U0001f9d1\u200d\U0001f680\u00a9\u231a\U0001fae0"
SCRIPTS = [(KANA * 4 + HANZI, 0x3041, 0x3096), (HANZI, 0x4E00, 0x9FA5), ("\u30fc\u30f3\u30b9\u30c8", 0x30A1, 0x30FA),
           ("\u0e01\u0e32\u0e19\u0e48\u0e2d\u0e23\u0e07\u0e40\u0e49\u0e17", 0xE01, 0xE3A), ("\uc774\ub2e4\ub294\ud558", 0xAC00, 0xD7A3),
           (EMOJI, 0x1F300, 0x1F64F), ("\u0627\u0644\u064a\u0645", 0x621, 0x64A), ("\u1780\u17b6\u17d2\u179a", 0x1780, 0x17D2)]


def unspaced_text(random_):
    """Long runs of one script after another, with little between them."""
    parts = []
    for _ in range(random_.randint(1, 6)):
        common, low, high = random_.choice(SCRIPTS)
        rare = random_.choice((0, 0.1, 0.5))
        for _ in range(random_.randint(1, 80)):
            parts.append(chr(random_.randint(low, high)) if random_.random() < rare else random_.choice(common))
        parts.append(random_.choice(("", "", "\u3002", "\u3001", " ", "\n", "\u300d\n\u300c", "a", "7")))
    return "".join(parts)


def pieces_text(random_, decode, size):
    """What random ids of the vocabulary spell."""
    ids = [random_.randrange(size) for _ in range(random_.randint(1, 20))]
    return decode([i for id_ in ids for i in [id_] * random_.choice((1, 1, 1, 2))])


def run(program, tokenizer, texts):
    data = b"".join(struct.pack("<I", len(t)) + t for t in texts)
    done = subprocess.run([program, tokenizer], input=data, capture_output=True, check=False)
    lines = done.stdout.decode("utf-8", "replace").split("\n")
    if done.returncode != 0:
        sys.exit(f"{tokenizer}: exit code {done.returncode}: {lines[0]} {done.stderr.decode()[-2000:]}")
    ids = [[int(i) for i in line.split()] for line in lines[1:-1:2]]
    return ids, [bytes.fromhex(line) for line in lines[2:-1:2]]


def huggingface(path):
    from tokenizers import Tokenizer
    peer = Tokenizer.from_file(path)
    return (lambda text: peer.encode(text, add_special_tokens=False).ids,
            lambda ids: peer.decode(ids, skip_special_tokens=False), peer.get_vocab_size())


def huggingface_pair(vocabulary, merges):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders
    peer = Tokenizer(models.BPE.from_file(vocabulary, merges))
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    return (lambda text: peer.encode(text, add_special_tokens=False).ids,
            lambda ids: peer.decode(ids, skip_special_tokens=False), peer.get_vocab_size())


def piece_model(path):
    import sentencepiece
    peer = sentencepiece.SentencePieceProcessor(model_file=path)
    return lambda text: peer.encode(text), lambda ids: peer.decode(ids), peer.vocab_size()


def ranks(path):
    import base64
    import tiktoken
    with open(path, "rb") as file:
        table = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in file if line.strip()}
    peer = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=table, special_tokens={})
    return peer.encode_ordinary, lambda ids: peer.decode_bytes(ids).decode("utf-8", "replace"), len(table)


def cases():
    tiny = os.path.join(SHIPPED, "tokenizers", "gpt2-tiny")
    stories = os.path.join(SHIPPED, "tokenizers", "stories260K")
    yield tiny, huggingface_pair, (os.path.join(tiny, "vocab.json"), os.path.join(tiny, "merges.txt"))
    yield os.path.join(stories, "tokenizer.json"), huggingface, ()
    yield os.path.join(stories, "tokenizer.model"), piece_model, ()
    for name in ("spm-bpe.model", "spm-unigram.model", "spm-unigram-bytes.model"):
        yield os.path.join(SHIPPED, "tokenizers", name), piece_model, ()
    for name in ("unigram", "wordpiece"):
        yield os.path.join(SHIPPED, "tokenizers", name, "tokenizer.json"), huggingface, ()
    if REFERENCE is None:
        print("LONGHAUL_REFERENCE is unset: only the tokenizers in the tree are compared")
        return
    files = os.path.join(REFERENCE, "data", "tokenizers")
    for name in ("gpt2", "falcon", "gpt-neox", "mistral"):
        yield os.path.join(files, name, "tokenizer.json"), huggingface, ()
    yield os.path.join(files, "gpt-neox", "tokenizer.array-merges.json"), huggingface, ()
    for name in ("llama2/tokenizer.model", "mistral/tokenizer.model.v1", "mistral/tokenizer.model.v3"):
        yield os.path.join(files, name), piece_model, ()
    yield os.path.join(files, "llama3", "tokenizer.model"), ranks, ()
    for name in ("hf_test_sentencepiece", "hf_test_sentencepiece_bpe", "hf_test_sentencepiece_with_bytefallback",
                 "test_ja_model", "test_model"):
        yield os.path.join(files, "sentencepiece-tests", name + ".model"), piece_model, ()


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behaviour, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behaviour, "invert": invert}


def byte_level(regex=True, space=False):
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}


def added(number, content, **flags):
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": number, "content": content, **defaults, **flags}


# what stands in a tokenizer.json around the tiny GPT-2 vocabulary
BYTE_VARIANTS = {
    "llama3": {"pre_tokenizer": [split(LLAMA3, "Isolated"), byte_level(False)], "normalizer": {"type": "NFC"}},
    "qwen2": {"pre_tokenizer": [split(LLAMA3.replace("{1,3}", ""), "Isolated"), byte_level(False)]},
    "prefix": {"pre_tokenizer": [byte_level(True, True)], "normalizer": {"type": "NFKC"}},
    "whole": {"pre_tokenizer": [byte_level(False)], "normalizer": {"type": "NFD"}},
    "digits": {"pre_tokenizer": [{"type": "Digits", "individual_digits": True}, byte_level()]},
    "digits2": {"pre_tokenizer": [{"type": "Digits", "individual_digits": False}, byte_level()]},
    "punctuation": {"pre_tokenizer": [{"type": "Punctuation", "behavior": "MergedWithNext"}, byte_level()]},
    "punctuation2": {"pre_tokenizer": [{"type": "Punctuation", "behavior": "MergedWithPrevious"}, byte_level(False)]},
    "falcon": {"pre_tokenizer": [{"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                                 {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]", "Isolated")]},
    "removed": {"pre_tokenizer": [split(r"\s+", "Removed"), byte_level(False)]},
    "inverted": {"pre_tokenizer": [split(r"\w+|[^\w\s]+", "Removed", True), byte_level(False)]},
    "contiguous": {"pre_tokenizer": [split(r"\p{Lu}", "Contiguous"), byte_level(False)]},
    "next": {"pre_tokenizer": [split(" ", "MergedWithNext", kind="String"), byte_level(False)]},
    "previous": {"pre_tokenizer": [split("a", "MergedWithPrevious", kind="String"), byte_level(False)]},
    "deepseek": {"pre_tokenizer": [split("[\r\n]", "Isolated"), split(r"\s?\p{L}+", "Isolated"),
                                   split(r"\s?\p{P}+", "Isolated"), split("[\u4e00-\u9fa5\u3040-\u30ff]+", "Isolated"),
                                   {"type": "Digits", "individual_digits": True}, byte_level(False)]},
    "replace": {"pre_tokenizer": [byte_level()],
                "normalizer": {"type": "Sequence", "normalizers": [
                    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "_"},
                    {"type": "Replace", "pattern": {"String": "the"}, "content": ""},
                    {"type": "Prepend", "prepend": "x"}]}},
    "added": {"pre_tokenizer": [byte_level()], "normalizer": {"type": "NFC"},
              "added_tokens": [added(5000, "<s>", special=True, lstrip=True), added(5001, "</s>", special=True, rstrip=True),
                               added(5002, " the", single_word=True), added(5003, "\ud55c", normalized=True),
                               added(5004, "  ", normalized=True), added(5005, "   ", normalized=True),
                               added(5006, "don't", single_word=True, lstrip=True, rstrip=True)]},
}

META = {"type": "Metaspace", "replacement": "\u2581"}
TEXT_VARIANTS = {
    "first": {"pre_tokenizer": {**META, "prepend_scheme": "first", "split": False}},
    "always": {"pre_tokenizer": {**META, "prepend_scheme": "always", "split": True}},
    "never": {"pre_tokenizer": {**META, "prepend_scheme": "never", "split": True}},
    "unknown": {"pre_tokenizer": {**META, "prepend_scheme": "always", "split": True}, "byte_fallback": False},
    "unfused": {"byte_fallback": False, "fuse_unk": False},
    "dropped": {"byte_fallback": False, "unk_token": None},
    "whole": {"pre_tokenizer": {**META, "prepend_scheme": "first", "split": True}, "ignore_merges": True},
    "digits": {"pre_tokenizer": {"type": "Digits", "individual_digits": True}},
}

# what stands around the unigram and the WordPiece vocabulary in the tree; the charsmap is that of spm-unigram.model
DECODERS = {
    "llama": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "each": {"type": "Sequence", "decoders": [
        {"type": "Strip", "content": "e", "start": 2, "stop": 0}, {"type": "Replace", "pattern": {"Regex": "[aou]+"}, "content": "_"}]},
    "suffix": {"type": "BPEDecoder", "suffix": "e"},
    "ctc": {"type": "CTC", "pad_token": "e", "word_delimiter_token": "\u2581", "cleanup": True},
    "ctc2": {"type": "CTC", "pad_token": "<unk>", "word_delimiter_token": "a", "cleanup": False},
    "pieces": {"type": "WordPiece", "prefix": "s", "cleanup": True},
    "bytes": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, byte_level()]},
    "none": None,
}
UNIGRAM_VARIANTS = {
    "first": {"pre_tokenizer": {**META, "prepend_scheme": "first", "split": True}},
    "whole": {"pre_tokenizer": {**META, "prepend_scheme": "never", "split": False}},
    "bare": {"pre_tokenizer": None, "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}},
    "t5": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": None},
           "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {**META, "prepend_scheme": "always"}]}},
    "albert": {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
        {"type": "Precompiled", "precompiled_charsmap": None}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {**META, "prepend_scheme": "always"}},
    "unfused": {"byte_fallback": False},
    "digits": {"byte_fallback": False, "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Nmt"}, {"type": "Strip", "strip_left": False, "strip_right": True}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {**META, "prepend_scheme": "first", "split": False}]}},
}
PIECE_VARIANTS = {
    "cased": {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": False,
                             "lowercase": False}},
    "bare": {"normalizer": None, "pre_tokenizer": {"type": "Whitespace"}},
    "space": {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"}},
    "short": {"max_input_chars_per_word": 4},
    "comma": {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "e"}},
    "fives": {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "FixedLength", "length": 3}},
    "dirty": {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}},
}

MODELS = {
    "plain": {},
    "fallback": {"byte_fallback": True, "character_coverage": 0.98},
    "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True,
                 "character_coverage": 0.98},
    "user": {"user_defined_symbols": ["<sep>", "the", "\u2581a\u2581b", "don't"], "control_symbols": ["<mask>"]},
    "user_words": {"user_defined_symbols": ["<sep>", "hell", "\u2581\u2581"], "remove_extra_whitespaces": False},
    "bare": {"add_dummy_prefix": False, "split_by_whitespace": False},
    "digits": {"split_digits": True, "allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False},
}


def json_variants(folder):
    """Writes tokenizer.json files with every stage that is read, over small vocabularies."""
    tiny = os.path.join(SHIPPED, "tokenizers", "gpt2-tiny")
    with open(os.path.join(tiny, "vocab.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)
    with open(os.path.join(tiny, "merges.txt"), encoding="utf-8") as file:
        merges = [line for line in file.read().split("\n") if line and not line.startswith("#version")]
    with open(os.path.join(SHIPPED, "tokenizers", "stories260K", "tokenizer.json"), encoding="utf-8") as file:
        stories = json.load(file)
    for name, variant in BYTE_VARIANTS.items():
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": variant.get("added_tokens", []),
                 "normalizer": variant.get("normalizer"),
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": variant["pre_tokenizer"]},
                 "post_processor": None, "decoder": byte_level(),
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": merges,
                           "ignore_merges": name == "llama3"}}
        yield write_json(folder, "bytes-" + name, whole)
    for name, variant in TEXT_VARIANTS.items():
        whole = json.loads(json.dumps(stories))
        for key, value in variant.items():
            (whole if key == "pre_tokenizer" else whole["model"])[key] = value
        if "pre_tokenizer" in variant:
            whole["normalizer"] = None
        yield write_json(folder, "text-" + name, whole)


def charsmap(path):
    """The precompiled charsmap of a sentencepiece model, in base64."""
    import base64
    with open(path, "rb") as file:
        fields = dict(read_fields(file.read()))
    return base64.b64encode(dict(read_fields(fields[3]))[2]).decode()


def read_fields(data):
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        size, after = read_varint(data, at) if tag & 7 in (0, 2) else ({1: 8, 5: 4}[tag & 7], at)
        at = after + (size if tag & 7 != 0 else 0)
        yield tag >> 3, data[after:at] if tag & 7 else size


def filled(value, map_):
    """The value with the charsmap where one is to be."""
    if isinstance(value, dict):
        return {k: map_ if k == "precompiled_charsmap" else filled(v, map_) for k, v in value.items()}
    return [filled(v, map_) for v in value] if isinstance(value, list) else value


def other_variants(folder):
    """The same over the unigram and the WordPiece vocabulary in the tree."""
    map_ = charsmap(os.path.join(SHIPPED, "tokenizers", "spm-unigram.model"))
    for name, variants in (("unigram", UNIGRAM_VARIANTS), ("wordpiece", PIECE_VARIANTS)):
        with open(os.path.join(SHIPPED, "tokenizers", name, "tokenizer.json"), encoding="utf-8") as file:
            base = json.load(file)
        for variant, values in {**variants, **{d: {"decoder": v} for d, v in DECODERS.items()}}.items():
            whole = json.loads(json.dumps(base))
            for key, value in filled(values, map_).items():
                (whole if key in whole else whole["model"])[key] = value
            yield write_json(folder, name + "-" + variant, whole)


def write_json(folder, name, whole):
    os.makedirs(os.path.join(folder, name))
    path = os.path.join(folder, name, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(whole, file)
    return path


def trained_models(folder, texts, kind):
    """Has sentencepiece train models with the options that change how text is read."""
    import sentencepiece
    corpus = ["".join(c for c in t if c < "\u0250").replace("\n", " ") for t in texts[:-5]]
    corpus = [t for t in corpus if t.strip()]
    corpus += ["the quick brown fox don't say hello to a b c", "hello hello world the the  the", "\u3042\u3044\u3046 \u6f22\u5b57"] * 40
    for name, options in MODELS.items():
        path = os.path.join(folder, kind + "-" + name)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_prefix=path, model_type=kind, hard_vocab_limit=False,
            minloglevel=2, vocab_size=1000, **{"character_coverage": 1.0, **options})
        yield path + ".model"
        # Before 0.2.3 sentencepiece writes an unused character as its piece, and not as unknown.
        if name == "plain" and (kind == "unigram" or sentencepiece.__version__ != "0.2.1"):
            yield with_unused(path + ".model", path + "-unused.model")


def with_unused(source, target):
    """Makes every fifth piece unused: it may be joined on the way, but is written as its parts."""
    with open(source, "rb") as file:
        data = file.read()
    at, index, made = 0, 0, b""
    while at < len(data):
        start, tag = at, data[at]
        size, at = read_varint(data, at + 1)
        piece = data[at:at + size]
        at += size
        if tag != 0x0A:
            made += data[start:at]
            continue
        if index % 5 == 4 and b"\x18" not in piece[-2:-1]:
            piece += b"\x18\x05"
        made += b"\x0A" + bytes([len(piece)]) + piece
        index += 1
    with open(target, "wb") as file:
        file.write(made)
    return target


def read_varint(data, at):
    value, shift = 0, 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def compare(program, path, make, arguments, texts):
    encode, decode, size = make(*(arguments or (path,)))
    random_ = random.Random(len(texts))
    texts = texts + [pieces_text(random_, decode, size).replace("\0", "") for _ in range(len(texts))]
    ours, decoded = run(program, path, [t.encode() for t in texts])
    wrong = 0
    for text, ids, back in zip(texts, ours, decoded):
        expected = encode(text)
        expected_text = decode(ids)
        if ids == expected and back.decode("utf-8", "replace") == expected_text:
            continue
        wrong += 1
        if wrong <= 3:
            print(f"  text {text!r}\n  ours {ids}\n  peer {expected}\n  back {back!r}\n  peer {expected_text!r}")
    print(f"{path}: {len(texts) - wrong} of {len(texts)} texts agree")
    return wrong == 0


def main():
    try:
        import sentencepiece  # noqa: F401
        import tiktoken  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as error:
        if os.path.abspath(sys.executable) != os.path.abspath(PEERS) and os.access(PEERS, os.X_OK):
            os.execv(PEERS, [PEERS, "-B", *sys.argv])
        print(f"skipped: {error}")
        return SKIPPED
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    random_ = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    texts = [random_text(random_) for _ in range(rounds)]
    unspaced = [unspaced_text(random_) for _ in range(rounds)]
    texts += ["a" * 5000, " " * 3000, "ab" * 4000, "\u3042" * 3000, "word " * 2000]
    more = texts + unspaced
    results = [compare(sys.argv[1], path, make, arguments, more) for path, make, arguments in cases()]
    with tempfile.TemporaryDirectory() as folder:
        for path in json_variants(folder):
            results.append(compare(sys.argv[1], path, huggingface, (), more))
        for path in other_variants(folder):
            results.append(compare(sys.argv[1], path, huggingface, (), more))
        for kind in ("bpe", "unigram"):
            for path in trained_models(folder, texts, kind):
                results.append(compare(sys.argv[1], path, piece_model, (), more))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
