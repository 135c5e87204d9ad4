#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a kernel spills registers or keeps a stack.

    tests/tools/check_gpu_code.py [--table] LOG...

LOG: what nvcc -Xptxas -v said for one file. Each must report at least one kernel. --table prints for each
kernel its registers and how many of its blocks (of 128 threads) the registers of a multiprocessor hold. Where
cuobjdump and nvdisasm are in PATH, the machine code of the object beside each log (LOG without .log) is
looked at, too: no kernel holds instructions for local memory, and the tiled ones hold those that they are
built on, and do not wait for the next block of keys before they have multiplied with this block's values.
Exit status: 0 fine, 1 offences, 2 wrong use.
"""
import argparse
import re
import shutil
import subprocess
import sys

TYPES = {1: "f32", 2: "f16", 3: "bf16", 4: "int8", 5: "fp8"}
THREADS = 128
REGISTERS = 65536  # of a multiprocessor; given out to warps by 256


def readable(symbol):
    """tile_kernel<bf16, 128, 8> from its mangled name."""
    match = re.search(r"(tile|wgmma|mla|plain|merge|read)_kernel((?:I(?:Li\d+E)+)?)", symbol)
    if not match:
        return symbol
    values = [int(x) for x in re.findall(r"Li(\d+)E", match.group(2))]
    shown = [TYPES.get(v, str(v)) if i == 0 else str(v) for i, v in enumerate(values)]
    return match.group(1) + "_kernel" + (f"<{', '.join(shown)}>" if shown else "")


def kernels(text):
    """Yields (architecture, name, stack bytes, spilled bytes, registers)."""
    pattern = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'.*?"
                         r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
                         r"Used (\d+) registers", re.DOTALL)
    for match in pattern.finditer(text):
        symbol, arch, stack, stores, loads, registers = match.groups()
        yield arch, readable(symbol), int(stack), int(stores) + int(loads), int(registers)


def machine_code(text):
    """Yields (architecture, name, set of instructions, products behind a wait) from what cuobjdump -sass
    says."""
    arch = None
    for part in re.split(r"^\s*Function : ", text, flags=re.MULTILINE):
        if arch:
            symbol = part.split(maxsplit=1)[0]
            code = [(int(at, 16), name, rest) for at, name, rest in re.findall(
                r"^\s*/\*([0-9a-f]+)\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)([^;]*);", part, re.MULTILINE)]
            yield arch, readable(symbol), {name for _, name, _ in code}, behind_waits(code)
        arch = (re.findall(r"^\s*arch = (\w+)", part, re.MULTILINE) or [arch])[-1]


def behind_waits(code):
    """In the loop over blocks of keys: products with values that come after a wait for copies.

    The loop is the smallest one that reads values by matrices and starts copies. A wait may stand at its top,
    before keys are read; one that ptxas moved up stands between the values and the products with them."""
    loops = []
    for end, (at, name, rest) in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        if not target or int(target.group(1), 16) >= at:
            continue
        body = [x[1] for x in code[:end] if x[0] >= int(target.group(1), 16)]
        if any(x.startswith("LDSM.16.MT88") for x in body) and "LDGDEPBAR" in body:
            loops.append(body)
    if not loops:
        return 0
    body = min(loops, key=len)
    first = next(i for i, x in enumerate(body) if x.startswith("LDSM.16.MT88"))
    wait = next((i for i, x in enumerate(body) if i > first and x.startswith("DEPBAR")), len(body))
    return sum(x.startswith("HMMA") for x in body[wait:])


def code_offences(name, instructions, behind):
    """Yields what is wrong with a kernel's machine code."""
    if behind:
        yield f"waits for the next block of keys before {behind} products with values"
    local = sorted(x for x in instructions if re.match(r"(LDL|STL)\b", x))
    if local:
        yield "holds " + ", ".join(local)
    if name.startswith("wgmma_"):
        wanted = [("HGMMA.64x64x16.F32", "products of a warpgroup"), (r"LDGSTS\.E\.BYPASS\S*\.128", "copies past L1")]
        for pattern, what in wanted:
            if not any(re.match(pattern, x) for x in instructions):
                yield f"holds no {pattern} ({what})"
    if name.startswith(("tile_", "mla_")):
        wanted = [("HMMA.16816.F32", "tensor cores"), (r"LDGSTS\.E\.BYPASS\S*\.128", "copies past L1"), ("MOVM", "weights transposed")]
        if "<f32" not in name:
            wanted += [(r"LDSM\.16\.M88\.4", "keys by matrices"), (r"LDSM\.16\.MT88\.4", "values, transposed")]
        for pattern, what in wanted:
            if not any(re.match(pattern, x) for x in instructions):
                yield f"holds no {pattern} ({what})"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("log", nargs="+")
    options = parser.parse_args(arguments)
    offences = 0
    for path in options.log:
        with open(path, encoding="utf-8") as file:
            found = sorted(kernels(file.read()))
        if not found:
            print(f"{path} reports no kernel", file=sys.stderr)
            offences += 1
        for arch, name, stack, spilled, registers in found:
            if options.table:
                per_warp = (registers * 32 + 255) // 256 * 256
                print(f"{arch} {name:28} registers {registers:3}, blocks by registers "
                      f"{REGISTERS // per_warp * 32 // THREADS}")
            if stack or spilled:
                print(f"{name} for {arch}: {stack} bytes of stack, {spilled} bytes spilled", file=sys.stderr)
                offences += 1
        if not (shutil.which("cuobjdump") and shutil.which("nvdisasm")):
            continue
        said = subprocess.run(["cuobjdump", "-sass", path.removesuffix(".log")], stdout=subprocess.PIPE, check=False,
                              text=True)
        if said.returncode != 0:  # older than the compiler
            print(f"{path}: cuobjdump cannot read the object; its machine code was not looked at", file=sys.stderr)
            continue
        text = said.stdout
        looked = [(arch, name, what) for arch, name, code, behind in machine_code(text)
                  for what in code_offences(name, code, behind)]
        if "Function : " not in text:
            looked.append(("any", path, "holds no machine code"))
        for arch, name, what in looked:
            print(f"{name} for {arch}: {what}", file=sys.stderr)
            offences += 1
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
