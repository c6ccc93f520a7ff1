"""Makes the references of tests/golden: small random models of every architecture, by Transformers and PyTorch on the CPU.

For each NAME a folder with: the Hugging Face folder as save_pretrained writes it (config.json, model.safetensors, FP32), `batch.safetensors`
(tokens [steps, batch, seq + 1] int32), `expected.safetensors` (logits of the first batch [batch, seq, vocab], its gradients by parameter name, all FP32)
and `expected.json` (versions, loss of the first batch, global gradient norm, loss curve of an AdamW run in FP32 and with BF16 autocast, greedy
continuation). Labels are the tokens shifted by one; the loss is the mean over all positions. FP32 runs use float32 arithmetic throughout.

  golden.py [--hidden 32] [--heads 4] [--kv-heads 2] [--ffn 56] [--layers 2] [--vocab 131] [--sequence 32] [--batch 4] [--steps 16] [--seed 20261120] OUT_DIR [NAME ...]
"""
import argparse, json
from pathlib import Path

parser = argparse.ArgumentParser()
for option, default in dict(hidden=32, heads=4, kv_heads=2, ffn=56, layers=2, vocab=131, sequence=32, batch=4, steps=16, seed=20261120).items():
    parser.add_argument("--" + option.replace("_", "-"), type=int, default=default)
parser.add_argument("out", type=Path)
parser.add_argument("names", nargs="*")
A = parser.parse_args()

import torch, transformers
from safetensors.torch import save_file
from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, FalconConfig, FalconForCausalLM, Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GemmaConfig,
                          GemmaForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

VOCAB, SEQ, BATCH, STEPS = A.vocab, A.sequence, A.batch, A.steps
HEAD = 2 * (A.hidden // A.heads)   # a head size that is not hidden / heads
WINDOW = A.sequence // 3
BASE = dict(vocab_size=VOCAB, hidden_size=A.hidden, intermediate_size=A.ffn, num_hidden_layers=A.layers, num_attention_heads=A.heads,
            num_key_value_heads=A.kv_heads, max_position_embeddings=4 * SEQ, initializer_range=0.08, bos_token_id=1, eos_token_id=2, pad_token_id=None)
FALCON = dict(vocab_size=VOCAB, hidden_size=A.hidden, num_hidden_layers=A.layers, num_attention_heads=A.heads, initializer_range=0.08, hidden_dropout=0,
              attention_dropout=0, bos_token_id=1, eos_token_id=2)


def cfg(cls, **more):
    return cls(**{**BASE, **more})


MODELS = {
    "llama": lambda: LlamaForCausalLM(cfg(LlamaConfig, tie_word_embeddings=False, rms_norm_eps=1e-5)),
    "llama-tied-scaled-rope": lambda: LlamaForCausalLM(cfg(LlamaConfig, tie_word_embeddings=True, rope_theta=500000.0, head_dim=HEAD, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=SEQ))),
    "mistral-window": lambda: MistralForCausalLM(cfg(MistralConfig, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(cfg(Qwen2Config, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(cfg(Qwen3Config, head_dim=HEAD, tie_word_embeddings=False)),
    "gemma": lambda: GemmaForCausalLM(cfg(GemmaConfig, head_dim=HEAD, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh")),
    "gemma2": lambda: Gemma2ForCausalLM(cfg(Gemma2Config, num_hidden_layers=2 * A.layers, head_dim=HEAD, query_pre_attn_scalar=HEAD + 8, sliding_window=WINDOW,
                                            attn_logit_softcapping=50.0, final_logit_softcapping=30.0)),
    "gemma3": lambda: Gemma3ForCausalLM(cfg(Gemma3TextConfig, num_hidden_layers=6, head_dim=HEAD, query_pre_attn_scalar=HEAD, sliding_window=WINDOW)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=A.hidden, n_layer=A.layers, n_head=A.heads, n_positions=4 * SEQ, resid_pdrop=0,
                                               embd_pdrop=0, attn_pdrop=0, initializer_range=0.08, bos_token_id=1, eos_token_id=2)),
    "gptneox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=VOCAB, hidden_size=A.hidden, intermediate_size=A.ffn, num_hidden_layers=A.layers,
                                                        num_attention_heads=A.heads, rotary_pct=0.25, max_position_embeddings=4 * SEQ, use_parallel_residual=True,
                                                        initializer_range=0.08, hidden_dropout=0, attention_dropout=0, bos_token_id=1, eos_token_id=2)),
    "falcon-7b-kind": lambda: FalconForCausalLM(FalconConfig(**FALCON, multi_query=True, parallel_attn=True, bias=False, alibi=False, new_decoder_architecture=False)),
    "falcon-40b-kind": lambda: FalconForCausalLM(FalconConfig(**FALCON, num_kv_heads=A.kv_heads, new_decoder_architecture=True, bias=False, alibi=False)),
    "falcon-rw-kind": lambda: FalconForCausalLM(FalconConfig(**FALCON, multi_query=False, parallel_attn=False, bias=True, alibi=True, new_decoder_architecture=False)),
    "mixtral": lambda: MixtralForCausalLM(cfg(MixtralConfig, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
                                              router_aux_loss_coef=0.02, sliding_window=None)),
    "phi3": lambda: Phi3ForCausalLM(cfg(Phi3Config, sliding_window=WINDOW)),
    "mla": lambda: DeepseekV3ForCausalLM(cfg(DeepseekV3Config, num_key_value_heads=A.heads, first_k_dense_replace=1024, q_lora_rank=3 * A.hidden // 4,
                                             kv_lora_rank=A.hidden // 2, qk_nope_head_dim=HEAD // 2, qk_rope_head_dim=HEAD // 4, v_head_dim=HEAD // 2 + 2,
                                             num_nextn_predict_layers=0)),
}


def loss_of(model, tokens, extra=True):
    out = model(input_ids=tokens[:, :-1].long(), use_cache=False)
    logits = out.logits.float()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1).long())
    aux = getattr(out, "aux_loss", None)
    if extra and aux is not None:
        loss = loss + model.config.router_aux_loss_coef * aux
    return loss, logits


def curve(model, tokens, autocast):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=0.1), dict(params=rest, weight_decay=0.0)], lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for t in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss, _ = loss_of(model, tokens[t])
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        opt.step()
        opt.zero_grad()
        losses.append(float(loss))
    return losses, norms


def main():
    for name in A.names or list(MODELS):
        torch.manual_seed(A.seed)
        model = MODELS[name]().float().eval()
        model.set_attn_implementation("eager")
        for p in model.parameters():   # norms and biases away from their neutral values, so that a forgotten one shows
            if p.dim() == 1:
                p.data += 0.1 * torch.randn_like(p)
        g = torch.Generator().manual_seed(A.seed + 1)
        base = torch.randint(3, VOCAB, (SEQ + 1,), generator=g)
        noise = torch.randint(3, VOCAB, (STEPS, BATCH, SEQ + 1), generator=g)
        keep = torch.rand(STEPS, BATCH, SEQ + 1, generator=g) < 0.7
        tokens = torch.where(keep, base.expand_as(noise), noise).int()   # learnable: the losses fall
        folder = A.out / name
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder, safe_serialization=True)
        loss, logits = loss_of(model, tokens[0])
        loss.backward()
        grads = {"grad." + n: p.grad.detach().clone().contiguous() for n, p in model.named_parameters()}
        norm = float(torch.sqrt(sum((v.double() ** 2).sum() for v in grads.values())))
        plain, _ = loss_of(model, tokens[0], extra=False)
        model.zero_grad()
        ids = tokens[0, :1, :8].long()
        with torch.no_grad():
            for _ in range(24):
                ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        fp32, norms = curve(model, tokens, False)
        model.load_state_dict(state)
        bf16, bf16_norms = curve(model, tokens, True)
        save_file({"tokens": tokens.contiguous()}, folder / "batch.safetensors")
        save_file({"logits": logits.detach().contiguous(), **grads}, folder / "expected.safetensors")
        json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "steps": STEPS, "batch": BATCH, "sequence": SEQ,
                   "loss_first_batch": float(loss), "cross_entropy_first_batch": float(plain), "gradient_norm_first_batch": norm,
                   "optimizer": "AdamW lr 3e-3 betas 0.9 0.95 eps 1e-8 weight decay 0.1 on matrices (embeddings too), 0 on vectors; clipped at global norm 1.0; no schedule",
                   "loss_curve_fp32": fp32, "gradient_norms_fp32": norms, "loss_curve_bf16_autocast": bf16, "gradient_norms_bf16_autocast": bf16_norms,
                   "tolerance": {"logits_abs": 2e-4, "loss_rel": 1e-5, "gradient_rel": 1e-3, "curve_fp32_rel": 1e-3, "curve_bf16_rel": 2e-2},
                   "greedy": {"prompt": ids[0, :8].tolist(), "continuation": ids[0, 8:].tolist()}}, open(folder / "expected.json", "w"), indent=1)
        print(name, "loss", fp32[0], "->", fp32[-1], "bf16", bf16[-1], flush=True)


main()
