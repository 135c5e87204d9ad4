# SPDX-License-Identifier: Apache-2.0
"""What the process that engines are forked from imports once. No thread may run in it, and nothing may look
at Banyan's variables."""

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine is in the process that was forked
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # enforce_eager compiles all the same once a client asks for log-probabilities
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; otherwise nearly all memory is asked for
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from vllm import LLM, SamplingParams  # noqa: F401
from vllm.model_executor.models import registry

torch.set_num_threads(1)
# Each new architecture is otherwise inspected in a process of its own: 17 s of processor time each.
registry._run_in_subprocess = lambda function: function()
