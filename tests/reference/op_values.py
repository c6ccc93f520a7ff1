"""Writes tests/devices/op_values.h: inputs and results of the ops, computed with PyTorch in double
precision, for the test of the reference device.

    python tests/reference/op_values.py > tests/devices/op_values.h
"""

import math

import torch
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)


def emit(name, tensor):
    values = tensor.detach().to(torch.float64).flatten().tolist()
    text = ", ".join("-INFINITY" if v == -math.inf else repr(v) for v in values)
    print(f"static const double {name}[] = {{{text}}};")


def random(*shape):
    return (torch.randn(*shape) * 0.8).requires_grad_()


def matmul():
    a, b, bias, c0 = random(3, 4), random(4, 5), random(5), random(3, 5)
    before = a @ b + bias
    for name, value in (("a", a), ("at", a.T), ("b", b), ("bt", b.T), ("bias", bias), ("c0", c0),
                        ("aux", before), ("c", F.gelu(before) + c0)):
        emit("matmul_" + name, value)


def norms():
    x, w, b, gy = random(3, 6), random(6), random(6), random(3, 6)
    for name, value in (("x", x), ("w", w), ("b", b), ("gy", gy)):
        emit("norm_" + name, value)
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-3)
    for name, weight in (("rms", w), ("rms1", 1 + w)):
        y = x * rstd * weight
        gx, gw = torch.autograd.grad(y, (x, w), gy, retain_graph=True)
        for part, value in (("y", y), ("gx", gx), ("gw", gw)):
            emit(f"{name}_{part}", value)
    emit("rms_rstd", rstd)
    y = F.layer_norm(x, (6,), w, b, 1e-3)
    gx, gw, gb = torch.autograd.grad(y, (x, w, b), gy)
    mean = x.mean(-1)
    for part, value in (("y", y), ("gx", gx), ("gw", gw), ("gb", gb), ("mean", mean),
                        ("rstd", torch.rsqrt(x.var(-1, unbiased=False) + 1e-3))):
        emit("layer_" + part, value)


def rope():
    """Two heads of 6, two pairs turn; Hugging Face's rotate_half, and neighbours."""
    x, gy = random(4, 12), random(4, 12)
    positions = torch.tensor([0, 5, 1, 300])
    frequencies = torch.tensor([1.0, 0.125], dtype=torch.float32)
    angle = (positions[:, None].float() * frequencies).double()[:, None, :]
    cos, sin = 1.5 * torch.cos(angle), 1.5 * torch.sin(angle)
    heads = x.view(4, 2, 6)

    one, two, rest = heads[..., 0:2], heads[..., 2:4], heads[..., 4:]
    half = torch.cat([one * cos - two * sin, two * cos + one * sin, rest], -1).view(4, 12)
    one, two = heads[..., 0:4:2], heads[..., 1:4:2]
    turned = torch.stack([one * cos - two * sin, two * cos + one * sin], -1).view(4, 2, 4)
    pairs = torch.cat([turned, rest], -1).view(4, 12)
    gx, = torch.autograd.grad(half, x, gy)
    for name, value in (("x", x), ("gy", gy), ("positions", positions),
                        ("frequencies", frequencies), ("half", half), ("pairs", pairs),
                        ("gx", gx)):
        emit("rope_" + name, value)


def attention_case(name, starts, window=0, cap=0.0, alibi=False, full=False, first=False):
    heads, kv, d, dv, t = 4, 2, 3, 2, 7
    torch.manual_seed(2)
    q, k, v = random(t, heads * d), random(t, kv * d), random(t, kv * dv)
    gy, slopes = random(t, heads * dv), torch.tensor([0.5, 0.25, 0.125, 0.0625])
    i, j = torch.arange(t)[:, None], torch.arange(t)[None, :]
    document = torch.bucketize(torch.arange(t), torch.tensor(starts), right=True)
    seen = (document[:, None] == document[None, :]) & (i < starts[-1]) & (j < starts[-1])
    if not full:
        seen = seen & (j <= i)
    if window:
        seen = seen & ((i - j).abs() < window)
    ys, lses = [], []
    for h in range(heads):
        n = h * kv // heads
        s = q[:, h * d:h * d + d] @ k[:, n * d:n * d + d].T / math.sqrt(d)
        if cap:
            s = cap * torch.tanh(s / cap)
        if alibi:
            s = s + slopes[h] * (j - i)
        s = s.masked_fill(~seen, -math.inf)
        lse = torch.logsumexp(s, -1)
        p = torch.where(seen, torch.exp(s - lse[:, None].masked_fill(lse[:, None] == -math.inf, 0)),
                        torch.zeros(()))
        ys.append(p @ v[:, n * dv:n * dv + dv])
        lses.append(lse)
    y, lse = torch.cat(ys, -1), torch.stack(lses)
    grads = torch.autograd.grad(y, (q, k, v), gy)
    if first:
        for part, value in (("q", q), ("k", k), ("v", v), ("gy", gy), ("slopes", slopes)):
            emit("attend_" + part, value)
    for part, value in (("y", y), ("lse", lse), ("gq", grads[0]), ("gk", grads[1]),
                        ("gv", grads[2])):
        emit(f"{name}_{part}", value)


def activations():
    x, b, gy = random(2, 5), random(2, 5), random(2, 5)
    emit("act_x", x), emit("act_b", b), emit("act_gy", gy)
    for name, function in (("silu", F.silu), ("gelu", F.gelu), ("tanh", torch.tanh),
                           ("gelu_tanh", lambda z: F.gelu(z, approximate="tanh"))):
        y = function(x)
        gx, = torch.autograd.grad(y, x, gy, retain_graph=True)
        emit(f"{name}_y", y), emit(f"{name}_gx", gx)
        y = y * b
        ga, gb = torch.autograd.grad(y, (x, b), gy)
        emit(f"{name}_gate", y), emit(f"{name}_ga", ga), emit(f"{name}_gb", gb)


def loss():
    logits = random(4, 6)
    labels, weights = torch.tensor([2, 0, 5, 3]), torch.tensor([0.5, 0.25, 0.0, 0.25])
    total = (F.cross_entropy(logits, labels, reduction="none") * weights).sum()
    grad, = torch.autograd.grad(total, logits)
    for name, value in (("logits", logits), ("labels", labels), ("weights", weights),
                        ("loss", total), ("grad", grad)):
        emit("ce_" + name, value)


def updates():
    """Two steps on gradients that are scaled by 0.5 first."""
    start, g1, g2 = random(5), random(5), random(5)
    emit("update_start", start), emit("update_g1", g1), emit("update_g2", g2)
    kinds = (("adamw", lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.9), eps=1e-3,
                                                   weight_decay=0.2)),
             ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.7)),
             ("nesterov", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.7, nesterov=True)))
    for name, make in kinds:
        p = start.detach().clone().requires_grad_()
        optimizer = make([p])
        for g in (g1, g2):
            p.grad = g.detach() * 0.5
            optimizer.step()
        emit(f"{name}_master", p)
        state = optimizer.state[p]
        if name == "adamw":
            emit("adamw_m1", state["exp_avg"]), emit("adamw_m2", state["exp_avg_sq"])
        else:
            emit(f"{name}_m1", state["momentum_buffer"])


print("/* Made by tests/reference/op_values.py with PyTorch in double precision; do not edit. */")
print("#ifndef OP_VALUES_H\n#define OP_VALUES_H\n\n#include <math.h>\n")
matmul()
norms()
rope()
attention_case("causal", [0, 3, 3, 7], first=True)
attention_case("window", [0, 7, 7], window=3, cap=0.7)
attention_case("alibi", [0, 2, 6], alibi=True)
attention_case("full", [0, 3, 7], full=True, window=2)
activations()
loss()
updates()
print("\n#endif")
