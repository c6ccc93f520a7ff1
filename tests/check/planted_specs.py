"""planted_specs.py CHECK PLUGINS SOURCE [NAME]: longhaul-check passes every spec of examples/specs and that of docs/specs.md,
and what is odd in one of them but right, and finds each fault below, planted in one of them, by one check and no other, with a sentence that names it. By turns the
others are not run, and gradients of one spec alone are: LONGHAUL_TORTURE=1 does all of it."""
import json
import os
import re
import subprocess
import sys
import tempfile

check, plugins, source = sys.argv[1:4]
SPECS = os.path.join(source, "examples", "specs")
TORTURE = os.environ.get("LONGHAUL_TORTURE", "0") not in ("", "0")
QUICK = "^(spec|tables|model.(o|pa|pr|re|ca|hu|te|de))"  # all but gradients

# What is wrong, the spec, a text that stands in it once, what stands there instead, the check, its sentence.
FAULTS = [
    ("an unknown line", "qwen3", "linear(n, w_up)), w_down",
     "linear(m, w_up)), w_down",
     "spec.reads", r":\d+: \[spec.block\] x: 'm' is no line above"),
    ("an unknown parameter", "qwen3", "q0   = linear(a, wq)",
     "q0   = linear(a, wqq)",
     "spec.reads", r"'wqq' .*did you mean 'wq'"),
    ("a cycle of lines", "qwen3", "rms_norm(q0, q_norm",
     "rms_norm(q, q_norm",
     "spec.reads", r"a cycle: q1 reads q, and q .* needs q1"),
    ("a cycle of values", "qwen3", "kv = or(kv_heads, heads)",
     "kv = or(kv_heads, heads * d2)\nd2 = kv",
     "spec.reads", r":\d+: .*a cycle: (d2 reads kv, and kv \(line \d+\) needs d2|kv reads d2, and d2 \(line \d+\) needs kv)"),
    ("a value that nobody reads", "qwen3", "kv = or(kv_heads, heads)",
     "kv = or(kv_heads, heads)\nd2 = kv",
     "spec.reads", r"d2 is read by no line, shape or value"),
    ("a value that needs itself", "qwen3", "kv = or(kv_heads, heads)",
     "kv = or(kv_heads, heads * kv)",
     "spec.reads", r"a cycle: kv reads kv"),
    ("a line of a name twice", "qwen3", "k0   = linear(a, wk)",
     "q0   = linear(a, wk)",
     "spec.reads", r"q0"),
    ("a line that nobody reads", "qwen3", "rms_norm(k0, k_norm, epsilon",
     "rms_norm(q0, k_norm, epsilon",
     "spec.reads", r"k0: no line below reads it"),
    ("a parameter that nobody reads", "qwen3", "[spec.embedding]",
     "[spec.parameter.more]\nshape = d\nhf = m.{}\n[spec.embedding]",
     "spec.reads", r"\[spec.parameter.more\] is read by no line of \[spec.block\]"),
    ("a parameter of another part", "qwen3", "rms_norm(x, norm, epsilon",
     "rms_norm(x, ffn_norm, epsilon",
     "spec.reads", r"'ffn_norm' is no line above, no parameter of this part"),
    ("an option that nobody reads", "qwen3", "[spec.values]",
     "more = count 1..9 1 of no use\n[spec.values]",
     "spec.reads", r"more is read by no line"),
    ("a word that a choice has not", "qwen3", "d  = or(head_dim, hidden / heads)",
     "d  = or(head_dim, if(is(rope_scaling, linaer), hidden, hidden) / heads)",
     "spec.reads", r"is\(rope_scaling, linaer\): the choice has no such word .*did you mean 'linear'"),
    ("a part that is not there", "qwen3", "[spec.head]",
     "[spec.tail]",
     "spec.reads", r"unknown section \[spec.tail\]"),
    ("a head without its input", "gpt2", "logits = linear(layer_norm(x, norm, norm_bias, epsilon=epsilon), head)",
     "logits = linear(input(positions), head)",
     "spec.reads", r"no line of \[spec.head\] reads its input, x"),
    ("an import without export", "gpt2", "export   = rows_out(source, part=0, parts=3)",
     "",
     "spec.reads", r"has import and no export"),
    ("a key of no option", "qwen3", "epsilon      = rms_norm_eps",
     "epsilom      = rms_norm_eps",
     "spec.reads", r"no such option in .* did you mean 'epsilon'"),
    ("a key without its value", "qwen3", "head_dim     = head_dim, absent 128",
     "head_dim     = head_dim, absent",
     "spec.reads", r"head_dim"),
    ("an option out of its range", "qwen3", "epsilon      = real 0..1 1e-6",
     "epsilon      = real 0..1 2",
     "spec.reads", r"epsilon"),
    ("an option of no type", "qwen3", "tied         = flag",
     "tied         = switch",
     "spec.reads", r"tied = switch .*expected count, real, flag, choice or text"),
    ("a bracket that stays open", "qwen3", "d  = or(head_dim, hidden / heads)",
     "d  = or(head_dim, hidden / heads",
     "spec.reads", r"d"),
    ("two expressions for a call", "qwen3", "x = embed(tokens, embed)",
     "x = 2 * 3",
     "spec.reads", r"expected a call of an op"),
    ("a help with a full stop", "qwen3", "the head uses the embedding table",
     "the head uses the embedding table.",
     "tables.help", r"option 'tied': its help"),
    ("an option in capitals", "qwen3", "[spec.values]",
     "Wide = count 1..9 1 of capitals\n[spec.values]\nw = Wide",
     "spec.reads|tables.keys", r"Wide"),
    ("an option of the core's name", "mixtral", "balance      = real 0.. 0.001 what that loss counts",
     "init_std = real 0.. 0.001 what that loss counts",
     "spec.reads|tables.keys", r"balance|init_std"),
    ("an unknown op", "qwen3", "gate = activate(",
     "gate = activat(",
     "model.opens", r":\d+: \[spec.block\] gate: there is no op 'activat' .*did you mean 'activate'"),
    ("an unknown attribute", "qwen3", "function=silu)",
     "kind=silu)",
     "model.opens", r"gate: .*kind"),
    ("an attribute of no such word", "qwen3", "function=silu)",
     "function=swish)",
     "model.opens", r"gate: .*swish"),
    ("an unknown tensor behind a keyword", "mixtral", "scores = linear(n, router)",
     "scores = add(linear(n, router), b=routr)",
     "model.opens", r"\[spec.block\] scores: 'routr' is no line above, .*did you mean 'router'"),
    ("an option in a tensor's place", "mixtral", "scores = linear(n, router)",
     "scores = add(linear(n, router), b=experts)",
     "model.opens", r"\[spec.block\] scores: 'experts' is no line above, no parameter"),
    ("a sum in the middle of numbers", "mixtral", "constant(value=balance * (experts * chosen) / (blocks * blocks))",
     "factor=constant(value=balance * total(load))",
     "spec.reads", r"\[spec.head\] balance: total\(\) is no function of numbers"),
    ("an input too many", "qwen3", "q0   = linear(a, wq)",
     "q0   = linear(a, wq, a, a)",
     "model.opens", r"q0: linear\(\) takes 3 inputs"),
    ("a slot that is none", "mixtral", "route(best.ids",
     "route(best.numbers",
     "model.opens", r"top_k\(\), which makes best, has no output 'numbers'"),
    ("a tie to nobody", "qwen3", "tied_to = embed",
     "tied_to = embedd",
     "spec.reads", r":\d+: \[spec.parameter.head\] tied_to = embedd: there is no such parameter; did you mean 'embed'"),
    ("a deviation below zero", "qwen3", "[spec.parameter.attn_norm]\nshape = hidden",
     "[spec.parameter.attn_norm]\nshape = hidden\nstd = 0 - 0.1",
     "model.opens", r"std is -0.1, expected a number from 0 on"),
    ("a matrix the wrong way round", "qwen3", "shape = ffn, hidden\ncut   = out\nhf    = model.layers.{}.mlp.up_proj",
     "shape = hidden, ffn\ncut   = out\nhf    = model.layers.{}.mlp.up_proj",
     "model.opens", r"w_up: linear"),
    ("heads as wide as the row", "qwen3", "shape = heads * d, hidden",
     "shape = hidden, hidden",
     "model.opens", r"open\(\) takes \w+ = \d+, and then .*wo: linear|q_norm|rope"),
    ("an output as wide as the row", "qwen3", "shape = hidden, heads * d",
     "shape = hidden, hidden",
     "model.opens", r"wo: linear"),
    ("a factor in the compute dtype", "mixtral", "x      = add(h, scatter_rows(home, order, shares, k=chosen))",
     "x      = add(h, scale(scatter_rows(home, order, shares, k=chosen), alpha))\n"
     "[spec.parameter.alpha]\nshape = 1\ninit = one\nhf = model.layers.{}.alpha\n",
     "model.precision", r"\[spec.block\] x: scale\(\) of .*alpha: scale: input factor is BF16"),
    ("a norm that is too long", "qwen3", "[spec.parameter.attn_norm]\nshape = hidden",
     "[spec.parameter.attn_norm]\nshape = hidden + 1",
     "model.opens", r"attn_norm: rms_norm wants w of"),
    ("a norm of the row for heads", "qwen3", "[spec.parameter.q_norm]\nshape = d",
     "[spec.parameter.q_norm]\nshape = hidden",
     "model.opens", r"q_norm: rms_norm wants w of"),
    ("values with as many heads", "mixtral", "[spec.parameter.wv]\nshape = kv * d, hidden",
     "[spec.parameter.wv]\nshape = heads * d, hidden",
     "model.opens", r"\[spec.block\] mixed: attention\(\)"),
    ("heads of queries for keys", "qwen3", "heads=heads, kv_heads=kv, head_dim=d",
     "heads=heads, kv_heads=heads, head_dim=d",
     "model.opens", r"\[spec.block\] h: attention\(\)"),
    ("keys turned by queries' heads", "qwen3", "rope(k1, f, heads=kv",
     "rope(k1, f, heads=heads",
     "model.opens", r"\[spec.block\] k: rope\(\)"),
    ("a block of another width", "gpt2", "linear(activate(up, function=gelu_tanh), w_down, b_down))",
     "linear(activate(up, function=gelu_tanh), w_down, b_down))\nx2 = linear(x, w_up, b_up)",
     "model.opens", r"expected \[\d+, \d+\]: tokens, hidden"),
    ("an expert's matrix too short", "mixtral", "[spec.parameter.w_down]\nshape = experts, hidden, ffn",
     "[spec.parameter.w_down]\nshape = experts, hidden, hidden",
     "model.opens", r"w_down: grouped_matmul"),
    ("a router of one expert less", "mixtral", "[spec.parameter.router]\nshape = experts, hidden",
     "[spec.parameter.router]\nshape = experts - 1, hidden",
     "model.opens", r"accumulate\(\)|load|probability|route|top_k|total"),
    ("a router of an expert more", "mixtral", "order  = route(best.ids, experts=experts)",
     "order  = route(best.ids, experts=experts - 1)",
     "model.opens", r"\[spec.block\] order: route\(\) of ids .*: route: input ids picks among \d+ columns, and experts is \d+"),
    ("a sum of another length", "mixtral", "total(load, count=experts)",
     "total(load, count=chosen)",
     "model.opens", r"load"),
    ("norms that decay", "qwen3", "[spec.parameter.ffn_norm]\nshape = hidden",
     "[spec.parameter.ffn_norm]\nshape = hidden\ndecay = yes",
     "model.decay", r"'blocks.0.ffn_norm' is a vector, and weight decay"),
    ("attention to what follows", "qwen3", "kv_heads=kv, head_dim=d)",
     "kv_heads=kv, head_dim=d, full=yes)",
     "model.causal", r"changes the logits of token"),
    ("a window that is left out", "mixtral", "head_dim=d, window=window)",
     "head_dim=d, window=window * 0)",
     "model.options", r"option 'window' changes nothing .*; a config.json that says another 'sliding_window' would be"),
    ("one file's name for two", "qwen3", "self_attn.k_proj.weight",
     "self_attn.q_proj.weight",
     "model.hugging_face", r"w[qk]"),
    ("one file's name for all blocks", "qwen3", "model.layers.{}.mlp.down_proj",
     "model.layers.mlp.down_proj",
     "model.hugging_face", r"w_down"),
    ("a transform of no name", "gpt2", "import   = transposed(source)\nexport   = transposed(source)\n\n[spec.parameter.bo]",
     "import   = turned(source)\nexport   = turned(source)\n\n[spec.parameter.bo]",
     "model.hugging_face", r"turned"),
    ("a transform that is no inverse", "falcon-7b", "export   = join_qkv(source, heads={heads}, kv_heads=1, part=0)",
     "export   = join_qkv(source, heads={heads}, kv_heads=1, part=1)",
     "model.hugging_face", r"w[qkv]|part"),
    ("parts exchanged on the way out", "gpt2", "export   = columns_out(source, part=1, parts=3)",
     "export   = columns_out(source, part=2, parts=3)",
     "model.hugging_face", r"w[kv]"),
    ("a tensor that is not turned", "gpt2", "[spec.parameter.w_down]\nshape    = hidden, f\ncut      = in\ninit     = residual\nhf       = transformer.h.{}.mlp.c_proj.weight\nhf_shape = f, hidden\nimport   = transposed(source)\nexport   = transposed(source)",
     "[spec.parameter.w_down]\nshape    = hidden, f\ncut      = in\ninit     = residual\nhf       = transformer.h.{}.mlp.c_proj.weight\nhf_shape = f, hidden",
     "model.hugging_face", r"w_down"),
    ("a key that is missing", "qwen3", "rope_factor  = rope_parameters.factor|+rope_scaling.factor, when rope_scaling=linear|llama3\n",
     "",
     "model.hugging_face", r"option 'rope_factor' is"),
    ("a key that is always the same", "qwen3", "tied         = tie_word_embeddings, absent false\n",
     "",
     "model.hugging_face", r"option 'tied' is yes, and no after"),
    ("a matrix that is not cut", "qwen3", "cut   = in\nunit  = d",
     "unit  = d",
     "model.tensor_ranks", r"block 0: .*parameter 'wo'"),
    ("inputs cut for outputs", "qwen3", "[spec.parameter.w_gate]\nshape = ffn, hidden\ncut   = out",
     "[spec.parameter.w_gate]\nshape = ffn, hidden\ncut   = in",
     "model.tensor_ranks", r"block 0: .*parameter 'w_gate'"),
    ("outputs cut for inputs", "qwen3", "shape = hidden, ffn\ncut   = in",
     "shape = hidden, ffn\ncut   = out",
     "model.tensor_ranks", r"block 0: .*parameter 'w_down'"),
    ("a query that is not cut", "qwen3", "[spec.parameter.wq]\nshape = heads * d, hidden\ncut   = out",
     "[spec.parameter.wq]\nshape = heads * d, hidden",
     "model.tensor_ranks", r"block 0: .*attention"),
    ("a norm that is cut", "qwen3", "[spec.parameter.ffn_norm]\nshape = hidden",
     "[spec.parameter.ffn_norm]\nshape = hidden\ncut = out",
     "model.tensor_ranks", r"block 0: .*'ffn_norm'"),
    ("an embedding cut by columns", "qwen3", "shape = vocab, hidden\ncut   = vocab\nhf    = model.embed",
     "shape = vocab, hidden\ncut   = in\nhf    = model.embed",
     "model.tensor_ranks", r"embedding: .*'embed'|embedding: .*output stays cut"),
    ("a bias that is cut by experts", "gpt2", "shape = f\ncut   = out",
     "shape = f\ncut   = expert",
     "model.tensor_ranks", r"'b_up' has 1 dimension and is cut by experts"),
    ("a loss that no sum is for", "mixtral", "total(probability, count=experts)",
     "total(probabilities, count=experts)",
     "spec.reads", r"no line of embedding or blocks adds to it; did you mean 'probability'"),
    ("a router that is cut", "mixtral", "[spec.parameter.router]\nshape = experts, hidden",
     "[spec.parameter.router]\nshape = experts, hidden\ncut = out",
     "model.tensor_ranks", r"block 0: .*(top_k|softmax)"),
    ("a router cut by its inputs", "mixtral", "[spec.parameter.router]\nshape = experts, hidden",
     "[spec.parameter.router]\nshape = experts, hidden\ncut = in",
     "model.tensor_ranks", r"block 0: .*'router'"),
    ("a router cut by experts", "mixtral", "[spec.parameter.router]\nshape = experts, hidden",
     "[spec.parameter.router]\nshape = experts, hidden\ncut = expert",
     "model.tensor_ranks", r"'router' has 2 dimensions and is cut by experts"),
    ("experts' rows cut", "mixtral", "[spec.parameter.w_gate]\nshape = experts, ffn, hidden\ncut   = expert",
     "[spec.parameter.w_gate]\nshape = experts, ffn, hidden\ncut   = in",
     "model.tensor_ranks", r"block 0: .*'w_gate'"),
    ("columns past the last", "phi3", "from=(heads + kv) * d",
     "from=(heads + 2 * kv) * d",
     "model.opens", r"v: columns\(\).*columns \d+ to \d+ of \d+"),
    ("a fused matrix that is cut", "phi3", "shape = (heads + 2 * kv) * d, hidden",
     "shape = (heads + 2 * kv) * d, hidden\ncut = out\nunit = d",
     "model.tensor_ranks", r"columns can't: .*1 parts of a row are not for 2 ranks"),
    ("a shared part that is none", "mla", "groups=heads, shared=yes",
     "groups=heads",
     "model.opens", r"k: concat\(\).*equal parts|attention"),]


# What is odd and right, the spec, texts that stand in it once with what stands there instead, the checks that pass it.
ODD = [
    ("a loss that is a parameter", "qwen3",
     [("[spec.embedding]", "[spec.parameter.reg]\nshape = 1\ninit = normal\nhf = model.layers.{}.reg\n\n[spec.embedding]"),
      ("n    = rms_norm(h, ffn_norm", "z    = loss(reg)\nn    = rms_norm(h, ffn_norm")], "^model.(opens|gradients)$"),
    ("components that turn, of a number that is asked for", "qwen3",
     [("[spec.values]", "rotary_dim = count 2..1024 - components of a head that turn\n\n[spec.values]"),
      ("rotary(dims=d,", "rotary(dims=rotary_dim,"),
      ("rope(q1, f, heads=heads, head_dim=d)", "rope(q1, f, heads=heads, head_dim=d, pairs=rotary_dim / 2)"),
      ("rope(k1, f, heads=kv, head_dim=d)", "rope(k1, f, heads=kv, head_dim=d, pairs=rotary_dim / 2)")], "^model.opens$")]


def run(path, only):
    """What neither passes nor is skipped, with its sentence; how many checks there were."""
    words = [check, "--json", "--plugins", plugins] + (["--only", only] if only else []) + [path]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=280)
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    return {r["check"]: r.get("reason", "") for r in rows if r["result"] not in ("pass", "skip")}, len(rows)


def plant(folder, spec, *edits):
    """A copy of the spec with other texts in the place of some; None: there is not one such place."""
    with open(os.path.join(SPECS, spec + ".ini")) as f:
        whole = f.read()
    for text, put in edits:
        if whole.count(text) != 1:
            print(f"{text!r} stands {whole.count(text)} times in {spec}.ini")
            return None
        whole = whole.replace(text, put)
    path = os.path.join(folder, spec + ".ini")
    with open(path, "w") as f:
        f.write(whole)
    return path


def right_ones(folder):
    yield from (os.path.join(SPECS, name) for name in sorted(os.listdir(SPECS)))
    with open(os.path.join(source, "docs", "specs.md")) as f:
        whole = [block for block in re.findall(r"```ini\n(.*?)```", f.read(), re.S) if "[spec.block]" in block and "[pipeline]" in block]
    for i, block in enumerate(whole):
        path = os.path.join(folder, "docs%d.ini" % i)
        with open(path, "w") as f:
            f.write(block)
        yield path


failures, names = 0, sys.argv[4:]
with tempfile.TemporaryDirectory(prefix="longhaul-check-") as scratch:
    right = [] if names else list(right_ones(scratch))
    for path in right:
        found, count = run(path, None if TORTURE or path.endswith("falcon-7b.ini") else QUICK)
        if found or count < 12:
            failures += 1
            print(f"{path}: {count} checks, and {found}")
    odd = [o for o in ODD if not names or o[0] in names]
    for what, spec, edits, only in odd:
        planted = plant(scratch, spec, *edits)
        found, count = run(planted, only) if planted is not None else ({}, 0)
        if found or count == 0:
            failures += 1
            print(f"{what}: {count} checks, and {found}")
    faults = [f for f in FAULTS if not names or f[0] in names]
    for i, (fault, spec, text, put, expected, sentence) in enumerate(faults):
        only = QUICK if TORTURE or names or i % 8 == 0 else "^(%s)$" % expected
        planted = plant(scratch, spec, (text, put))
        found, _ = run(planted, only) if planted is not None else ({}, 0)
        if len(found) == 1 and re.fullmatch(expected, list(found)[0]) and re.search(sentence, list(found.values())[0]):
            if names:
                print(found)
            continue
        failures += 1
        print(f"{fault}: expected {expected}: {sentence}; found {found}")
print(f"{len(right) + len(odd)} specs that are right, {len(faults)} faults; {failures} judged wrongly")
sys.exit(failures != 0 or not (right or names))
