#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies a library without the machine code of GPUs that were not asked for.

    fatbin.py 80,90 FROM TO

nvcc puts a "fat binary" behind each other for each compiled file: a header, then entries, one an
architecture, each with a header of its own and its code, mostly compressed. The driver takes one entry by the
headers and reads that one's code. Here the code of all others becomes zeros, which compress to nothing;
headers, sizes and places stay. In the section __nv_relfatbin, which serves a linker alone, the code of all
entries does.

    fat binary   0: 0xba55ed50  4: version, u16  6: header's bytes, u16  8: bytes of all entries, u64
    entry        0: kind, u16 (1: PTX, 2: machine code)  2: version, u16  4: header's bytes, u32  8: bytes of code, u64
                 28: architecture, u32 (90: sm_90)
"""
import re
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
RELOCATABLE = b"__nv_relfatbin"


class Damaged(Exception):
    pass


def section(data, name):
    """[first byte, end) of a section of a 64-bit ELF file; (0, 0): it has none."""
    if data[:5] != b"\x7fELF\x02":
        raise Damaged("this is not a 64-bit ELF file")
    (table,), (size, count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    for head in heads:
        at = heads[names][4] + head[0]
        if data[at:data.index(b"\0", at)] == name:
            return head[4], head[4] + head[5]
    return 0, 0


def entries(data):
    """(kind, architecture, first byte of the code, its end) of every entry."""
    for found in re.finditer(re.escape(MAGIC), data):
        start = found.start()
        if start + 16 > len(data):
            continue
        version, header, size = struct.unpack_from("<HHQ", data, start + 4)
        if (version, header) != (1, 16):
            continue  # the same four bytes elsewhere
        at, end = start + header, start + header + size
        while at < end:
            if at + 64 > len(data) or end > len(data):
                raise Damaged(f"the fat binary at {start} goes beyond the file's end")
            kind, _, head, code = struct.unpack_from("<HHIQ", data, at)
            (architecture,) = struct.unpack_from("<I", data, at + 28)
            if head < 64 or at + head + code > end:
                raise Damaged(f"the fat binary at {start} has an entry that goes beyond its end")
            yield kind, architecture, at + head, at + head + code
            at += head + code


def keep(data, wanted):
    """Zeros in place of the rest; what is left: {architecture: bytes}."""
    first, end = section(data, RELOCATABLE)
    left = dict.fromkeys(wanted, 0)
    for kind, architecture, start, stop in list(entries(bytes(data))):
        if kind == 2 and architecture in wanted and not first <= start < end:
            left[architecture] += stop - start
        else:
            data[start:stop] = bytes(stop - start)
    for architecture, size in left.items():
        if size == 0:
            raise Damaged(f"it holds no machine code for sm_{architecture}")
    return left


def main():
    if len(sys.argv) != 4 or not re.fullmatch(r"\d+(,\d+)*", sys.argv[1]):
        sys.exit("usage: fatbin.py 80,90 FROM TO")
    try:
        with open(sys.argv[2], "rb") as file:
            data = bytearray(file.read())
        left = keep(data, [int(a) for a in sys.argv[1].split(",")])
        with open(sys.argv[3], "wb") as file:
            file.write(data)
    except (Damaged, OSError, struct.error, ValueError) as e:
        print(f"fatbin.py: {sys.argv[2]}: {e}", file=sys.stderr)
        return 1
    print(", ".join(f"sm_{a}: {size >> 10} KiB" for a, size in left.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
