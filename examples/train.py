# SPDX-License-Identifier: Apache-2.0
"""Train a small byte-level Llama (token = Latin-1 byte) that writes scripture-like English and copies a verse out of
its context when it is asked for by its reference.

    python train.py --text kjv.txt --minutes 75 --out out [--resume]

The text has one verse a line, each line beginning with its reference ("Ge1:1 In the beginning ...").  The last 3 % of
it is never trained on.  Written for PyTorch >= 2 on a CPU with bfloat16 matrix instructions.
"""
import argparse, json, math, os, random, re, struct, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F

CFG = dict(hidden=256, layers=5, q_heads=4, kv_heads=2, head_dim=64, ff=768, vocab=256, theta=1e7, pmax=65536, eps=1e-5)
DIM, NL, HQ, HK, D, FF, V = (CFG[k] for k in ('hidden', 'layers', 'q_heads', 'kv_heads', 'head_dim', 'ff', 'vocab'))
FREQ = 1.0 / CFG['theta'] ** (torch.arange(0, D // 2).double() / (D // 2))


# ---------------------------------------------------------------- model (exactly Hugging Face's LlamaForCausalLM)
def rope(x, c, s):
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class Layer(nn.Module):
    def __init__(s):
        super().__init__()
        lin = lambda i, o: nn.Linear(i, o, bias=False)
        s.n1, s.n2 = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.ones(DIM))
        s.q, s.k, s.v, s.o = lin(DIM, HQ * D), lin(DIM, HK * D), lin(DIM, HK * D), lin(HQ * D, DIM)
        s.g, s.u, s.d = lin(DIM, FF), lin(DIM, FF), lin(FF, DIM)

    def forward(s, x, c, sn, dt, cache=None):
        B, T, _ = x.shape
        h = F.rms_norm(x, (DIM,), s.n1, CFG['eps']).to(dt)
        w = torch.cat((s.q.weight, s.k.weight, s.v.weight)).to(dt)
        qkv = F.linear(h, w).view(B, T, HQ + 2 * HK, D).transpose(1, 2)
        qk, v = rope(qkv[:, :HQ + HK], c, sn), qkv[:, HQ + HK:]
        q, k = qk[:, :HQ], qk[:, HQ:]
        mask = None
        if cache is not None:
            if 'k' in cache:
                P = cache['k'].shape[2]
                k, v = torch.cat((cache['k'], k), 2), torch.cat((cache['v'], v), 2)
                mask = torch.ones(T, P + T, dtype=torch.bool).tril(P)
            cache['k'], cache['v'] = k, v
        k, v = (t.repeat_interleave(HQ // HK, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + F.linear(y.transpose(1, 2).reshape(B, T, HQ * D), s.o.weight.to(dt))
        h = F.rms_norm(x, (DIM,), s.n2, CFG['eps']).to(dt)
        g, u = F.linear(h, torch.cat((s.g.weight, s.u.weight)).to(dt)).chunk(2, -1)
        return x + F.linear(F.silu(g) * u, s.d.weight.to(dt))


class Model(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(V, DIM)
        s.ls = nn.ModuleList(Layer() for _ in range(NL))
        s.n = nn.Parameter(torch.ones(DIM))
        for n, p in s.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.5 / math.sqrt(p.shape[1]) * (0.5 if n.endswith(('o.weight', 'd.weight')) else 1))
        nn.init.normal_(s.e.weight, 0, 0.02)
        # Head start for copying: a constant component in every embedding lets the first layer's heads look at the
        # bytes 1, 2, 3, 4 before, and the second layer's at 4, 2, 1, 0 before the ones the first layer saw.
        with torch.no_grad():
            s.e.weight[:, 0] = 0.1
            for l, offs in ((0, (1, 2, 3, 4)), (1, (4, 5, 1, 8))):
                L, n, w = s.ls[l], 6, 1.0 if l == 0 else 0.7
                L.k.weight[:, 0] = 0
                for h in range(HK): L.k.weight[h * D:h * D + n, 0] = w
                for h, off in enumerate(offs):
                    a = FREQ[:n].float() * off
                    # rope(q, p).rope(k, j) is largest where p - j = off when q is turned back by off
                    L.q.weight[h * D:(h + 1) * D, 0] = 0
                    L.q.weight[h * D:h * D + n, 0] = w * a.cos()
                    L.q.weight[h * D + D // 2:h * D + D // 2 + n, 0] = -w * a.sin()

    def forward(s, x, pos, dt=torch.bfloat16, cache=None, last=None):
        a = (pos[..., None].double() * FREQ)[:, None]
        c, sn = a.cos().to(dt), a.sin().to(dt)
        h = s.e(x)
        for i, l in enumerate(s.ls):
            h = l(h, c, sn, dt, None if cache is None else cache.setdefault(i, {}))
        if last: h = h[:, -last:]
        return F.linear(F.rms_norm(h, (DIM,), s.n, CFG['eps']).to(dt), s.e.weight.to(dt))


# ---------------------------------------------------------------- optimiser: Muon for matrices, Adam for the rest
class Muon:
    def __init__(s, params, mom=0.95, wd=0.02):
        s.mom, s.wd, s.groups, s.buf = mom, wd, {}, {}
        for p in params: s.groups.setdefault(tuple(sorted(p.shape)), []).append(p)
        for p in params: s.buf[p] = torch.zeros_like(p)

    @torch.no_grad()
    def step(s, lr):
        for ps in s.groups.values():
            us = []
            for p in ps:
                b = s.buf[p]
                b.lerp_(p.grad, 1 - s.mom)
                u = p.grad.lerp(b, s.mom)
                us.append(u if u.shape[0] <= u.shape[1] else u.t())
            X = torch.stack(us).bfloat16()
            X = X / (X.float().norm(dim=(1, 2), keepdim=True).bfloat16() + 1e-7)
            for _ in range(5):
                A = X @ X.mT
                X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
            for p, u in zip(ps, X.float()):
                if p.shape[0] > p.shape[1]: u = u.t()
                p.mul_(1 - lr * s.wd).add_(u, alpha=-lr * max(1, p.shape[0] / p.shape[1]) ** 0.5)


# ---------------------------------------------------------------- data
class Data:
    """Every sequence is a list of (bytes, weight) pieces; the weight is the loss weight of those bytes."""
    def __init__(s, path):
        raw = open(path, encoding='latin1').read()
        cut = raw.index('\n', len(raw) * 97 // 100) + 1
        s.train, s.held = raw[:cut], raw[cut:]
        parse = lambda t: [tuple(l.split(' ', 1)) for l in t.split('\n') if ' ' in l]
        s.verses, s.held_verses = parse(s.train), parse(s.held)
        s.books = sorted(set(re.match(r'\d?[A-Za-z]+', r).group(0) for r, _ in s.verses))
        s.words = [w for w in s.train.split() if ':' not in w or w[0].islower()]
        s.bytes = np.frombuffer(s.train.encode('latin1'), dtype=np.uint8)

    def book(s):
        if random.random() < 0.7: return random.choice(s.books)
        b = random.choice('ABCDEFGHIJKLMNOPRSTUVWXYZ') + ''.join(random.choice('abcdefghijklmnoprstuvwxyz') for _ in range(random.randrange(1, 3)))
        return (random.choice('123') if random.random() < 0.2 else '') + b       # 'q' is kept for made-up test books

    def refs(s):
        """An endless supply of different references: in order as in a real text, or random with near-collisions."""
        used, kind = set(), random.random()
        if kind < 0.5:                                        # in order
            b, c, v, n = s.book(), random.randrange(1, 60), 1, random.randrange(5, 45)
            if random.random() < 0.5: v = random.randrange(1, n)
            while True:
                r = f'{b}{c}:{v}'
                if r not in used: used.add(r); yield r
                v += 1
                if v > n:
                    c, v, n = c + 1, 1, random.randrange(5, 45)
                    if random.random() < 0.05: b, c = s.book(), 1
        few = [s.book() for _ in range(random.randrange(1, 4))] if kind < 0.75 else None
        top, tries = (25 if few else 150), 0
        while True:
            r = (random.choice(few) if few else s.book()) + f'{random.randrange(1, top)}:{random.randrange(1, top)}'
            tries += 1
            if tries % 400 == 0: top += 30
            if r not in used: used.add(r); yield r

    def value(s, kind, cap, pool):
        if kind == 'chars':
            return ''.join(random.choice(pool) for _ in range(random.randrange(6, max(8, min(cap, 40))))).strip() or 'x'
        if kind == 'words':
            return ' '.join(random.choice(pool) for _ in range(random.randrange(2, max(4, min(cap // 6, 18)))))
        t = random.choice(s.verses)[1]
        if len(t) > cap: a = random.randrange(0, len(t) - cap); t = t[a:a + cap].strip()
        return t

    def recall(s, T, st):
        kind = random.choices(('chars', 'words', 'verse', 'order'), st['kinds'])[0]
        p_ask = random.choice(st['ask'])
        at_end = random.random() < st['end']                  # statements first, questions after
        refs, seen, out, n, pool = s.refs(), [], [], 0, None
        if kind == 'words': pool = random.sample(s.words, random.choice((5, 10, 30, 400)))     # a small pool: every line looks
        if kind == 'chars':                                   # like every other, only the place in the asked line helps
            a = 'abcdefghijklmnopqrstuvwxyz' + random.choice(('', '    ABCDEFGHIJKL0123456789,.;:'))
            pool = ''.join(random.sample(a, random.choice((3, 6, 12, len(a)))))
        cap = max(40, min(400, T // 5))
        i = random.randrange(len(s.verses) - T // 20 - 10)
        if random.random() < 0.5: out.append(('\n', 0.)); n = 1
        while n < T + 2:
            ask = seen and (n > T * 0.6 if at_end else random.random() < p_ask)
            if ask:
                r, t = random.choice(seen)
                if random.random() < 0.2: r, t = seen[max(0, len(seen) - 1 - int(random.expovariate(0.3)))]
                out += [(r + ' ', .05), (t[:5], st['first']), (t[5:] + '\n', st['copy'])]
            else:
                r = next(refs)
                if kind == 'order': t = s.verses[i][1]; i += 1
                else: t = s.value(kind, cap, pool)
                if len(t) > cap * 2: t = t[:cap * 2].strip()
                seen.append((r, t))
                out += [(r + ' ', .05), (t + '\n', .03 if kind == 'chars' else .1 if kind == 'words' else .7)]
            n += len(r) + len(t) + 2
        x = np.frombuffer(''.join(a for a, _ in out).encode('latin1'), dtype=np.uint8)[:T + 1]
        w = np.repeat(np.array([b for _, b in out], dtype=np.float32), [len(a) for a, _ in out])[:T + 1]
        return x, w

    def positions(s, T):
        """Consecutive from a random start, or with random skips, so that far positions and distances are known."""
        P = CFG['pmax']
        p = np.arange(T)
        if random.random() < 0.5: return p + int(random.random() ** 3 * (P - T))
        room = int((P - T) * random.random() ** 2)
        for _ in range(3): p[random.randrange(1, T):] += random.randrange(room // 3 + 1)
        return p + random.randrange(P - int(p[-1]))

    def batch(s, st):
        T, xs, ws, ps = st['T'], [], [], []
        for _ in range(max(1, st['tokens'] // T)):
            if random.random() < st['plain']:
                i = random.randrange(len(s.bytes) - T - 1)
                x, w = s.bytes[i:i + T + 1], np.ones(T + 1, dtype=np.float32)
            else: x, w = s.recall(T, st)
            xs.append(x); ws.append(w); ps.append(s.positions(T))
        x = torch.from_numpy(np.stack(xs).astype(np.int64))
        return x[:, :-1], x[:, 1:], torch.from_numpy(np.stack(ws))[:, 1:], torch.from_numpy(np.stack(ps))


# ---------------------------------------------------------------- measuring
@torch.no_grad()
def bits(m, d, T, windows, dt=torch.float32, start=0):
    """Bits a byte of held-out text, over whole windows of T bytes."""
    h = np.frombuffer(d.held.encode('latin1'), dtype=np.uint8).astype(np.int64)
    tot = 0.
    for i in range(windows):
        a = i * (len(h) - T - 1) // max(1, windows - 1)
        x = torch.from_numpy(h[a:a + T + 1])[None]
        tot += F.cross_entropy(m(x[:, :-1], torch.arange(T)[None] + start, dt)[0].float(), x[0, 1:]).item()
    return tot / windows / math.log(2)


# ---------------------------------------------------------------- files
def tensors(m):
    names = {'model.embed_tokens.weight': m.e.weight, 'model.norm.weight': m.n}
    for i, l in enumerate(m.ls):
        for n, p in (('input_layernorm', l.n1), ('post_attention_layernorm', l.n2), ('self_attn.q_proj', l.q.weight),
                     ('self_attn.k_proj', l.k.weight), ('self_attn.v_proj', l.v.weight), ('self_attn.o_proj', l.o.weight),
                     ('mlp.gate_proj', l.g.weight), ('mlp.up_proj', l.u.weight), ('mlp.down_proj', l.d.weight)):
            names[f'model.layers.{i}.{n}.weight'] = p
    return names


def save(m, out):
    os.makedirs(out, exist_ok=True)
    hdr, off, blobs = {'__metadata__': {'format': 'pt'}}, 0, []
    for k, t in tensors(m).items():
        b = t.detach().to(torch.bfloat16).view(torch.int16).numpy().tobytes()
        hdr[k] = {'dtype': 'BF16', 'shape': list(t.shape), 'data_offsets': [off, off + len(b)]}
        off += len(b); blobs.append(b)
    h = json.dumps(hdr).encode(); h += b' ' * (-len(h) % 8)
    with open(out + '/model.safetensors.part', 'wb') as f: f.write(struct.pack('<Q', len(h)) + h + b''.join(blobs))
    os.replace(out + '/model.safetensors.part', out + '/model.safetensors')
    json.dump({'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'hidden_size': DIM, 'num_hidden_layers': NL,
               'num_attention_heads': HQ, 'num_key_value_heads': HK, 'head_dim': D, 'intermediate_size': FF,
               'hidden_act': 'silu', 'rms_norm_eps': CFG['eps'], 'rope_theta': CFG['theta'],
               'max_position_embeddings': CFG['pmax'], 'tie_word_embeddings': True, 'attention_bias': False,
               'mlp_bias': False, 'vocab_size': V, 'torch_dtype': 'bfloat16'}, open(out + '/config.json', 'w'), indent=2)


# ---------------------------------------------------------------- stages: (up to this share of the time, settings)
STAGES = (
    (0.12, dict(T=512, tokens=8192, plain=.15, kinds=(4, 3, 2, 2), ask=(.3, .5, .6), end=.2, first=4., copy=2.)),
    (0.48, dict(T=1024, tokens=8192, plain=.50, kinds=(1.5, 1.5, 3, 4), ask=(.15, .3, .5), end=.25, first=4., copy=2.)),
    (0.51, dict(T=2048, tokens=8192, plain=.45, kinds=(1, 1, 3, 5), ask=(.1, .3, .5), end=.3, first=6., copy=4.)),
    (0.78, dict(T=4096, tokens=8192, plain=.40, kinds=(.7, .7, 3, 6), ask=(.1, .2, .5), end=.3, first=6., copy=4.)),
    (1.01, dict(T=8192, tokens=8192, plain=.35, kinds=(.4, .4, 2, 6), ask=(.05, .2, .5), end=.4, first=6., copy=4.)))
PEAK = 0.02


def train(a):
    random.seed(0); torch.manual_seed(0)
    d, m = Data(a.text), Model()
    mats = [p for n, p in m.named_parameters() if p.dim() == 2 and n != 'e.weight']
    rest = [p for n, p in m.named_parameters() if p.dim() == 1 or n == 'e.weight']
    muon, adam = Muon(mats), torch.optim.AdamW(rest, lr=0, betas=(0.9, 0.98), weight_decay=0.)
    ema = {n: p.detach().clone() for n, p in m.named_parameters()}
    step = seen = 0; gone = 0.
    ck = a.out + '/checkpoint.pt'
    os.makedirs(a.out, exist_ok=True)
    if a.resume and os.path.exists(ck):
        c = torch.load(ck, weights_only=False)
        m.load_state_dict(c['m']); adam.load_state_dict(c['adam']); ema = c['ema']
        for p, b in zip(mats, c['muon']): muon.buf[p].copy_(b)
        step, seen, gone = c['step'], c['seen'], c['gone']
        random.seed(step)
    f = m if a.eager else torch.compile(m, dynamic=False)
    t_last, t_ck, av = time.time(), time.time(), {}
    while gone < a.minutes * 60:
        e = gone / 60 / a.minutes
        st = next(s for end, s in STAGES if e < end)
        lr = PEAK * min(1, (step + 1) / 60) * (1 if e < .2 else max(0.04, (1 - e) / .8))
        for g in adam.param_groups: g['lr'] = lr * 0.25
        x, y, w, p = d.batch(st)
        l = f(x, p)
        ce = F.cross_entropy(l.float().view(-1, V), y.reshape(-1), reduction='none')
        wf = w.reshape(-1)
        loss = (ce * wf).sum() / wf.sum()
        adam.zero_grad(); [setattr(q, 'grad', None) for q in mats]
        loss.backward()
        nn.utils.clip_grad_norm_(rest, 1.0)
        muon.step(lr); adam.step()
        step += 1; seen += y.numel()
        with torch.no_grad():
            k = 0.01 if .1 < e < .75 else 0.03
            for n, q in m.named_parameters(): ema[n].lerp_(q, k)
            hit = (l.view(-1, V).argmax(-1) == y.reshape(-1)).float()
            for n, q in (('first', wf == st['first']), ('copy', wf == st['copy']), ('w1', wf == 1.)):
                if q.any():
                    v = hit[q].mean().item(); av[n] = av.get(n, v) * .95 + v * .05
            av['loss'] = av.get('loss', loss.item()) * .95 + loss.item() * .05
        now = time.time(); gone += now - t_last; t_last = now
        last = gone >= a.minutes * 60
        if step % 20 == 0:
            print(f'{step} {e:.3f} T{st["T"]} ' + ' '.join(f'{n} {v:.3f}' for n, v in av.items()) + f' lr {lr:.4f} {gone:.0f}s {seen / 1e6:.2f}M', flush=True)
        if now - t_ck > 180 or last:
            t_ck = now
            torch.save(dict(m=m.state_dict(), adam=adam.state_dict(), ema=ema, muon=[muon.buf[p] for p in mats], step=step, seen=seen, gone=gone), ck + '.part')
            os.replace(ck + '.part', ck)
            raw = {n: p.detach().clone() for n, p in m.named_parameters()}
            m.load_state_dict(ema); save(m, a.out)
            bf = torch.bfloat16
            print(f'== {step} averaged weights: {bits(m, d, 512, 16, torch.bfloat16):.3f} bits a byte of held-out text', flush=True)
            m.load_state_dict(raw)
    return m, d


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('--text', default='kjv.txt'); ap.add_argument('--minutes', type=float, default=75)
    ap.add_argument('--out', default='out'); ap.add_argument('--resume', action='store_true')
    ap.add_argument('--eager', action='store_true')
    ap.add_argument('--threads', type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    train(a)
