#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries on the same GPU: the table and the JSON keys of bench/device, with `peer`.

    bench/device_peers.py [--device cuda:N] [--context 4K,...] [--kv f32,f16,bf16] [--group 1,4,8] [--rows 1,4,64]
                          [--kv-heads 8] [--dim 128] [--batch 1] [--rotate 256M] [--samples 9] [--check] [--json]

Peers, of what this Python has:

    torch-BACKEND-gqa      PyTorch's scaled_dot_product_attention, its flash, efficient, cudnn or math backend by
                           name, enable_gqa where a KV head has several query heads
    torch-BACKEND-folded   the same with the query heads of a KV head given as query rows, so that none is repeated
    flashinfer             single_decode_with_kv_cache (one row, batch 1)
    flash-attn             flash_attn_with_kvcache

Queries are of the KV type, as these libraries want them; bench/device takes float32. us_submit_to_done is one call and
a synchronize, by the host's clock; us_per_step is that of a row of calls between two CUDA events, from a CUDA graph
where the call can be captured ("graph"). Tensors lie in the order that these libraries like best, and in as many copies
as --rotate asks for, read in turn. The copy is PyTorch's from tensor to tensor, each byte counted twice; the read is
PyTorch's sum of 512 MiB. Samples are interleaved, figures medians. For contexts of up to 4096 keys (--check: for all)
a result is first compared with a float32 computation; a peer that is wrong, does not apply or does not fit is left out
with a sentence. --device cpu shows only whether it works.
"""

import argparse
import json
import math
import statistics
import sys
import time
import warnings

KV = ("f32", "f16", "bf16", "int8", "fp8")
BACKENDS = (("flash", "FLASH_ATTENTION"), ("efficient", "EFFICIENT_ATTENTION"), ("cudnn", "CUDNN_ATTENTION"),
            ("math", "MATH"))
SAMPLE_S, ROW_MOST, ALWAYS_CHECKED, DIFFERENCE_MOST = 0.01, 1000, 4096, 0.05
torch = None  # until main has found it


def say(words):
    print(f"device_peers.py: {words}", file=sys.stderr)


def size(text):
    units = {"K": 10, "M": 20, "G": 30}
    n = int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)
    if n < 1:
        raise ValueError
    return n


def sizes(text):
    return [size(one) for one in text.split(",")]


def kv_types(text):
    for one in text.split(","):
        if one not in KV:
            raise argparse.ArgumentTypeError(f"'{one}' is not one of {', '.join(KV)}")
    return text.split(",")


def device_name(text):
    if text != "cpu" and not (text.startswith("cuda:") and text[5:].isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is neither cuda:N nor cpu")
    return text


def options():
    parser = argparse.ArgumentParser(prog="device_peers.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=device_name, default="cuda:0")
    parser.add_argument("--context", type=sizes, default=sizes("4K,16K,64K,128K,256K"))
    parser.add_argument("--kv", type=kv_types, default=list(KV))
    parser.add_argument("--group", type=sizes, default=[1, 4, 8])
    parser.add_argument("--rows", type=sizes, default=[1, 4, 64])
    parser.add_argument("--batch", type=sizes, default=[1])
    parser.add_argument("--kv-heads", type=size, default=8)
    parser.add_argument("--dim", type=size, default=128)
    parser.add_argument("--rotate", type=size, default=256 << 20)
    parser.add_argument("--samples", type=size, default=9)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Clock:
    """Times calls on the device."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def alone(self, call):
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        return time.perf_counter() - start

    def row(self, calls):
        """Seconds that what calls() puts on the stream takes there."""
        if not self.cuda:
            return self.alone(calls)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        start.record()
        calls()
        end.record()
        self.wait()
        return start.elapsed_time(end) / 1e3

    def graph(self, calls):
        """calls() as one CUDA graph; None where it cannot be captured."""
        if not self.cuda:
            return None
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                calls()
            graph.replay()
            self.wait()
            return graph
        except RuntimeError:
            return None


def row_of(seconds, fewest):
    return max(fewest, min(ROW_MOST, math.ceil(SAMPLE_S / max(seconds, 1e-9))))


class Store:
    """K and V of one context and type, in copies."""

    def __init__(self, o, device, kv, context, batch):
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kv]
        shape = (batch, o.kv_heads, context, o.dim)
        self.kind, self.kv, self.context, self.batch, self.device = kind, kv, context, batch, device
        self.bytes = 2 * math.prod(shape) * torch.finfo(kind).bits // 8
        self.copies = math.ceil(o.rotate / self.bytes)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            self.copies = min(self.copies, int(free * 0.6) // (2 * self.bytes))
            if self.copies == 0:
                raise MemoryError
        make = lambda: torch.randn((2, *shape), dtype=torch.float32, device=device).to(kind)
        self.kvs = [make() for _ in range(self.copies)]
        self.room = [torch.empty_like(one) for one in self.kvs]


class Point:
    def __init__(self, o, store, group, rows):
        self.o, self.store, self.group, self.rows = o, store, group, rows
        self.q = torch.randn(store.batch, o.kv_heads * group, rows, o.dim, device=store.device).to(store.kind)

    def seen(self):
        """[rows, context]: the rows are the last ones of the context."""
        n = self.store.context
        return torch.ones(self.rows, n, dtype=torch.bool, device=self.store.device).tril(n - self.rows)

    def exact(self):
        """float32, a KV head at a time."""
        k, v = self.store.kvs[0]
        out = []
        for h in range(self.o.kv_heads):
            q = self.q[:, h * self.group:(h + 1) * self.group].float()
            x = q @ k[:, h:h + 1].float().transpose(-1, -2) / math.sqrt(self.o.dim)
            out.append(torch.softmax(x.masked_fill(~self.seen(), -math.inf), -1) @ v[:, h:h + 1].float())
        return torch.cat(out, 1)


def sdpa(point, backend, folded):
    """A call over one copy, its result [batch, q_heads, rows, dim]."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
    o, rows, group = point.o, point.rows, point.group
    q, mask, gqa = point.q, None, group > 1 and not folded
    if folded:
        q = q.reshape(q.shape[0], o.kv_heads, group * rows, o.dim)
    if rows > 1 and not folded and backend.name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        mask = causal_lower_right(rows, point.store.context)
    elif rows > 1:
        mask = point.seen().repeat(group if folded else 1, 1)[None, None]

    def call(copy):
        k, v = point.store.kvs[copy]
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=gqa)
        return out.reshape(point.q.shape)
    return call


def flashinfer_decode(point, library):
    def call(copy):
        k, v = point.store.kvs[copy]
        return library.single_decode_with_kv_cache(point.q[0, :, 0], k[0], v[0], kv_layout="HND")[None, :, None]
    return call


def flash_attn_decode(point, library):
    q = point.q.transpose(1, 2).contiguous()

    def call(copy):
        k, v = point.store.kvs[copy]
        return library.flash_attn_with_kvcache(q, k.transpose(1, 2), v.transpose(1, 2), causal=True).transpose(1, 2)
    return call


def library(name):
    try:
        return __import__(name)
    except (ImportError, OSError, RuntimeError):
        return None


def candidates(point):
    """(name, version, call) of what might do this point."""
    from torch.nn.attention import SDPBackend
    for name, member in BACKENDS:
        backend = getattr(SDPBackend, member, None)
        for folded in (False, True) if backend is not None and point.group > 1 else (False,):
            if backend is not None:
                yield f"torch-{name}-{'folded' if folded else 'gqa'}", torch.__version__, sdpa(point, backend, folded)
    if point.store.kv != "f32" and point.store.device.type == "cuda":
        found = library("flashinfer") if point.rows == 1 and point.store.batch == 1 else None
        if found:
            yield "flashinfer", getattr(found, "__version__", "?"), flashinfer_decode(point, found)
        found = library("flash_attn")
        if found:
            yield "flash-attn", found.__version__, flash_attn_decode(point, found)


class Peer:
    def __init__(self, name, version, call, clock, copies):
        self.name, self.version, self.call, self.clock, self.copies = name, version, call, clock, copies
        self.turn, self.done, self.step, self.difference = 0, [], [], None

    def once(self):
        self.call(self.turn % self.copies)
        self.turn += 1

    def row(self):
        for _ in range(self.n):
            self.once()

    def begin(self):
        self.clock.alone(self.once)
        seconds = self.clock.alone(self.once)
        self.n = row_of(seconds, 2 if seconds > 0.1 else 8)
        # A graph replays what it captured: all copies, or as many of them as a row of calls sees
        self.n = max(self.n, min(self.copies, ROW_MOST))
        self.captured = self.clock.graph(self.row)

    def sample(self):
        self.done.append(self.clock.alone(self.once))
        self.step.append(self.clock.row(self.captured.replay if self.captured else self.row) / self.n)


def begin(point, clock):
    """The peers that do this point, and do it right."""
    store, found = point.store, []
    checked = point.o.check or store.context <= ALWAYS_CHECKED
    exact = point.exact() if checked else None
    for name, version, call in candidates(point):
        what = f"{name}, {store.kv}, context {store.context}, group {point.group}, rows {point.rows}, batch {store.batch}"
        peer = Peer(name, version, call, clock, store.copies)
        try:
            if checked:
                peer.difference = float((call(0).float() - exact).abs().max() / exact.abs().max())
                if not peer.difference <= DIFFERENCE_MOST:
                    say(f"{what}: off by {peer.difference:.3g} of the largest value, skipped")
                    continue
            peer.begin()
            found.append(peer)
        except Exception as e:  # whatever a library throws at a shape that it does not know
            say(f"{what}: {(str(e).splitlines() or [type(e).__name__])[0]}, skipped")
    return found


class Floors:
    """What the memory does, by PyTorch."""

    def __init__(self, store, clock):
        self.store, self.clock, self.read, self.copy = store, clock, [], []
        self.memory = torch.zeros((512 << 20 if clock.cuda else 16 << 20) // 4, device=store.device)
        self.copies()
        self.n = row_of(self.clock.alone(self.copies) / store.copies, 4)

    def copies(self, n=None):
        for i in range(n or self.store.copies):
            self.store.room[i % self.store.copies].copy_(self.store.kvs[i % self.store.copies])

    def sample(self):
        self.copy.append(2 * self.store.bytes * self.n / self.clock.row(lambda: self.copies(self.n)))
        self.read.append(4 * self.memory.numel() / self.clock.row(lambda: self.memory.sum()))


def report(point, peer, floors, device):
    o, store = point.o, point.store
    done, step, read, copy = (statistics.median(x) for x in (peer.done, peer.step, floors.read, floors.copy))
    speed = store.bytes / step
    if not o.json:
        print(f"{peer.name:<22} {store.kv:<5} {store.context:7} {point.group:5} {point.rows:4} {store.batch:5} {store.copies:6} "
              f"{done * 1e6:10.1f} {min(peer.done) * 1e6:10.1f} {step * 1e6:10.1f} {speed / 1e9:8.1f} {copy / 1e9:8.1f} "
              f"{read / 1e9:8.1f} {speed / copy:6.3f} {speed / read:6.3f}", flush=True)
        return
    line = {"bench": "device", "peer": peer.name, "version": peer.version, "device": device,
            "emulated": store.device.type != "cuda", "kv": store.kv, "context": store.context, "group": point.group,
            "rows": point.rows, "batch": store.batch, "kv_heads": o.kv_heads, "dim": o.dim, "bytes": store.bytes,
            "copies": store.copies, "bytes_per_s": speed, "read_bytes_per_s": read, "copy_bytes_per_s": copy,
            "ratio": speed / copy, "ratio_read": speed / read, "us_submit_to_done": done * 1e6,
            "us_submit_to_done_best": min(peer.done) * 1e6, "us_per_step": step * 1e6,
            "us_per_step_best": min(peer.step) * 1e6, "steps": peer.n, "graph": peer.captured is not None,
            "difference": peer.difference, "done_samples": [x * 1e6 for x in peer.done],
            "step_samples": [x * 1e6 for x in peer.step], "read_samples": floors.read, "copy_samples": floors.copy}
    print(json.dumps(line), flush=True)


def measure(o, store, device, clock):
    floors = Floors(store, clock)
    for group in o.group:
        for rows in o.rows:
            if rows > store.context:
                say(f"context {store.context} has no {rows} rows, skipped")
                continue
            point = Point(o, store, group, rows)
            peers = begin(point, clock)
            floors.read, floors.copy = [], []
            for _ in range(o.samples):
                for peer in peers:
                    peer.sample()
                floors.sample()
            for peer in peers:
                report(point, peer, floors, device)


def sweep(o, device):
    clock = Clock(device)
    name = f"{device} ({torch.cuda.get_device_name(device)})" if clock.cuda else "cpu"
    if not o.json:
        print(f"{name}, PyTorch {torch.__version__}. K and V of fewer than {o.rotate >> 20} MiB lie there in several copies.")
        if not clock.cuda:
            print("This is no GPU: no figure below is a speed of one.")
        print(f"{'peer':<22} {'kv':<5} {'context':>7} group rows batch copies us to done       best  us a step     GB/s     copy"
              "     read  ratio ratio_r")
    for kv in o.kv:
        if kv in ("int8", "fp8"):
            say(f"no peer attends over {kv} keys with a scale each, skipped")
    for batch in o.batch:
        for context in o.context:
            for kv in (kv for kv in o.kv if kv not in ("int8", "fp8")):
                try:
                    measure(o, Store(o, device, kv, context, batch), name, clock)
                except (MemoryError, RuntimeError) as e:
                    say(f"{kv}, context {context}, batch {batch}: {(str(e).splitlines() or ['no memory'])[0]}, skipped")
                if clock.cuda:
                    torch.cuda.empty_cache()


def main():
    global torch
    o = options()
    try:
        import torch as found
    except (ImportError, OSError):
        say("PyTorch is not installed for this Python, so there is nothing to compare with")
        return
    torch = found
    if o.device != "cpu" and not torch.cuda.is_available():
        say(f"PyTorch {torch.__version__} sees no CUDA device here, so there is nothing to compare with")
        return
    device = torch.device(o.device)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        say(f"PyTorch {torch.__version__} sees no device {device}, so there is nothing to compare with")
        return
    warnings.filterwarnings("ignore")  # a backend's reasons not to do a shape
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    with torch.inference_mode():
        sweep(o, device)


if __name__ == "__main__":
    main()
