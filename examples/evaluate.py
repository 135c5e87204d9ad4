# SPDX-License-Identifier: Apache-2.0
"""Measure a model that train.py made: bits a byte of held-out text, copying a verse out of the context, samples.

    python eval.py --text kjv.txt --out out [--lengths 512,1024,2048,4096,8192,16384,32768] [--threads 2]
"""
import argparse, json, random, struct
import numpy as np, torch, torch.nn.functional as F
from train import Data, Model, bits, tensors


@torch.no_grad()
def load(m, out):
    raw = open(out + '/model.safetensors', 'rb').read()
    n = struct.unpack('<Q', raw[:8])[0]
    hdr = json.loads(raw[8:8 + n])
    for k, t in tensors(m).items():
        a, b = hdr[k]['data_offsets']
        t.copy_(torch.frombuffer(bytearray(raw[8 + n + a:8 + n + b]), dtype=torch.bfloat16).view(t.shape).float())


def eval_context(d, ctx, mode, rng):
    """Lines (reference, text) of about ctx bytes.  madeup: held-out verses cut to 80 bytes, random references that crowd
    each other, of books that do not exist.  shuffled: held-out verses, each with another's reference.  natural: held-out
    text as it stands.  known: training text as it stands.  swapped: training text, references dealt to other verses."""
    src = d.verses if mode in ('known', 'swapped') else d.held_verses
    mean = sum(len(r) + len(t) + 2 for r, t in src) / len(src)
    i = rng.randrange(max(1, int(len(src) - ctx / mean * 1.15 - 5)))
    out, n, used = [], 0, set()
    books = ['Q' + rng.choice('abcdefgh') + rng.choice('uvwxyz') for _ in range(4)]
    while n < ctx and i < len(src):
        r, t = src[i]; i += 1
        if mode == 'madeup':
            t = rng.choice(d.held_verses)[1]
            a = rng.randrange(max(1, len(t) - 80)); t = t[a:a + 80].strip()
            while True:
                r = f'{rng.choice(books)}{rng.randrange(1, 30)}:{rng.randrange(1, 40)}'
                if r not in used: break
            used.add(r)
        if n + len(r) + len(t) + 2 > ctx: break
        out.append((r, t)); n += len(r) + len(t) + 2
    if mode in ('shuffled', 'swapped'):
        refs = [r for r, _ in out]; rng.shuffle(refs)
        out = [(r, t) for r, (_, t) in zip(refs, out)]
    return out


@torch.no_grad()
def retrieve(m, d, ctx, mode='madeup', contexts=2, asks=12, dt=torch.float32, seed=1):
    """Share of the asked verses' bytes whose argmax is right, and share of verses that a greedy continuation writes out
    exactly, up to and with the newline (it does just when every argmax is right)."""
    rng, ok, tot, exact, n = random.Random(seed), 0, 0, 0, 0
    for _ in range(contexts):
        lines = eval_context(d, ctx, mode, rng)
        pre = torch.tensor([list(('\n'.join(r + ' ' + t for r, t in lines) + '\n').encode('latin1'))])
        P, cache = pre.shape[1], {}
        m(pre, torch.arange(P)[None], dt, cache, last=1)
        for r, t in rng.sample(lines[:-1], min(asks, len(lines) - 1)):
            b = torch.tensor([list((r + ' ' + t + '\n').encode('latin1'))])
            fork = {i: dict(c) for i, c in cache.items()}
            pr = m(b, P + torch.arange(b.shape[1])[None], dt, fork)[0].argmax(-1)
            hit = pr[len(r):-1] == b[0, len(r) + 1:]
            ok += hit[:-1].sum().item(); tot += len(t); exact += bool(hit.all()); n += 1
    return ok / tot, exact / n, n


@torch.no_grad()
def generate(m, prompt, n=300, temp=0.7, dt=torch.float32, seed=0):
    g, cache, out = torch.Generator().manual_seed(seed), {}, []
    x, p = torch.tensor([list(prompt.encode('latin1'))]), 0
    for _ in range(n):
        l = m(x, p + torch.arange(x.shape[1])[None], dt, cache, last=1)[0, -1].float()
        p += x.shape[1]
        t = l.argmax() if temp == 0 else torch.multinomial(F.softmax(l / temp, -1), 1, generator=g)[0]
        out.append(int(t)); x = t.view(1, 1)
    return bytes(out).decode('latin1')


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('--text', default='kjv.txt'); ap.add_argument('--out', default='out')
    ap.add_argument('--lengths', default='512,1024,2048,4096,8192,16384,32768')
    ap.add_argument('--modes', default='madeup,shuffled,natural,known,swapped')
    ap.add_argument('--threads', type=int, default=2)
    ap.add_argument('--bits', type=int, default=1); ap.add_argument('--asked', type=int, default=64)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    d, m = Data(a.text), Model()
    load(m, a.out)
    lens = [int(x) for x in a.lengths.split(',')]
    for T in lens if a.bits else ():
        print(f'bits a byte at {T}: {bits(m, d, T, max(2, min(64, 65536 // T))):.3f}', flush=True)
    for T in lens:
        n = max(2, min(16, 16384 // T))
        for mode in a.modes.split(','):
            print(f'copy at {T} {mode}: bytes %.3f exact %.2f of %d asked' % retrieve(m, d, T, mode, n, a.asked // n), flush=True)
    print(repr(generate(m, 'Ge1:1 In the beginning', 400)))
    print(repr(generate(m, d.held[:600], 400)))
