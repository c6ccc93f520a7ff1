"""The INI of a small training by two ranks over tcp, for tests that look at a real job."""


def training(source, steps, transport=""):
    """It ends with [launch], so that more of it may follow."""
    return f"""[pipeline]
name = two_ranks
stages = prepare train
folder = out
[prepare]
input = {source}/examples/data/tinyshakespeare.jsonl
tokenizer = {source}/examples/data/gpt2-tiny/vocab.json
[model]
plugin = llama
vocab = from_tokenizer
blocks = 1
hidden = 32
ffn = 64
heads = 2
max_tokens = 32
[train]
sequence = 32
batch = 2
steps = {steps}
[optimizer]
plugin = zero0
rule = rules:adamw
learning_rate = 1e-3
[checkpoint]
every = 20
keep = 2
[device]
plugin = cpu
threads = 1
[transport.node]
plugin = tcp
{transport}[launch]
ranks_per_node = 2
secret = job.key
"""
