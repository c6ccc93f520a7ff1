"""The least job that trains, as sections of an INI: a Llama of one block over a vocabulary of a few tokens, one step of a
batch of two. Keys of [model] may stand between the two, and keys of [device] behind them."""
MODEL = """[model]
plugin = llama
blocks = 1
hidden = 16
heads = 2
ffn = 32
max_tokens = 16
"""
TRAIN = """[data]
split = 1,0,0
[train]
sequence = 8
batch = 2
steps = 1
[optimizer]
plugin = zero0
rule = rules:adamw
learning_rate = 0.01
[device]
plugin = cpu
"""
