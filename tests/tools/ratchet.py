# SPDX-License-Identifier: Apache-2.0
"""Numbers that may only fall: a file of lines "NAME NUMBER" behind its comments. What is not in it is at its
least."""
import sys


def read(path):
    bounds = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or not words[1].isdigit() or words[0] in bounds:
                sys.exit(f"{path}:{number}: not 'NAME NUMBER', or a name that is there already")
            bounds[words[0]] = int(words[1])
    return bounds


def write(path, numbers, width):
    """Keeps the comments. numbers: (name, number), in order."""
    with open(path, encoding="utf-8") as file:
        head = [line for line in file if line.startswith("#")]
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(head)
        file.writelines(f"{name:<{width}} {number}\n" for name, number in numbers)
