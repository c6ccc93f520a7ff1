#!/usr/bin/env python3
"""Writes rows of tests/data/tokenizers/vectors.json anew, by the libraries that are the reference: ids and decoded
text of each of its texts.

    make_vectors.py NAME...      NAME as in the file, below tests/data/tokenizers
    make_vectors.py stages       stages.json: every variant of differential.py over the small vocabularies, on some texts

Needs tokenizers, and sentencepiece 0.2.1: 0.2.3 decides between equally likely cuts of a unigram model in another way
(docs/data.md)."""
import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "tokenizers")
VECTORS = os.path.join(FOLDER, "vectors.json")


def peer(path):
    if path.endswith(".model"):
        import sentencepiece
        assert sentencepiece.__version__ == "0.2.1", sentencepiece.__version__
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        return model.encode, model.decode
    from tokenizers import Tokenizer
    whole = Tokenizer.from_file(path)
    return (lambda text: whole.encode(text, add_special_tokens=False).ids,
            lambda ids: whole.decode(ids, skip_special_tokens=False))


RULES = ["0041\t0061", "0041 030A\t00E5", "00A0\t0020", "FF76 FF9E\t30AC", "FB01\t0066 0069", "0009\t0020", "0020 0301\t0027",
         "200D\t", "2460\t0031", "AC00\t1100 1161"]


def small_charsmap():
    """A charsmap of a few rules, as sentencepiece compiles it."""
    import tempfile
    import sentencepiece
    from differential import charsmap
    with tempfile.TemporaryDirectory() as folder:
        rules, prefix = os.path.join(folder, "rules.tsv"), os.path.join(folder, "m")
        with open(rules, "w", encoding="utf-8") as file:
            file.write("\n".join(RULES) + "\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c"] * 10), model_prefix=prefix, vocab_size=8, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_tsv=rules)
        return charsmap(prefix + ".model")


def stages():
    """Writes stages.json: what each variant sets, and its ids and texts."""
    from tokenizers import Tokenizer
    from differential import DECODERS, PIECE_VARIANTS, UNIGRAM_VARIANTS, filled
    with open(VECTORS, encoding="utf-8") as file:
        texts = json.load(file)["texts"]
    texts = texts[11:46:5] + texts[46:100:7] + ["A\u030a \uff76\uff9e\u00a0\ufb01 \u200d A\tb", "  lead ``quote'' don't do not , . n't "]
    map_, rows = small_charsmap(), []
    for base, variants in (("unigram", UNIGRAM_VARIANTS), ("wordpiece", PIECE_VARIANTS)):
        for values in list(variants.values()) + [{"decoder": d} for d in DECODERS.values()]:
            with open(os.path.join(FOLDER, base, "tokenizer.json"), encoding="utf-8") as file:
                whole = json.load(file)
            values = filled(values, map_)
            for key, value in values.items():
                (whole if key in whole else whole["model"])[key] = value
            peer_ = Tokenizer.from_str(json.dumps(whole))
            ids = [peer_.encode(t, add_special_tokens=False).ids for t in texts]
            rows.append({"base": base, "set": values, "ids": ids,
                         "decoded": [peer_.decode(i, skip_special_tokens=False) for i in ids]})
    with open(os.path.join(FOLDER, "stages.json"), "w", encoding="utf-8") as file:
        json.dump({"texts": texts, "rows": rows}, file, separators=(",", ":"))


def main():
    if sys.argv[1:] == ["stages"]:
        stages()
        return
    with open(VECTORS, encoding="utf-8") as file:
        vectors = json.load(file)
    for name in sys.argv[1:]:
        encode, decode = peer(os.path.join(FOLDER, name))
        ids = [encode(text) for text in vectors["texts"]]
        vectors["tokenizers"][name] = {"ids": ids, "decoded": [decode(i) for i in ids]}
    with open(VECTORS, "w", encoding="utf-8") as file:
        json.dump(vectors, file, separators=(",", ":"))


main()
