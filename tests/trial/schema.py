# SPDX-License-Identifier: Apache-2.0
"""The messages of proto/banyan.proto, read from that file: packed from and unpacked to dictionaries. What an
attacker would write for himself; it checks nothing, so that wrong messages can be sent."""
import re
import struct

VARINT = {"uint32", "uint64", "int32", "bool"}
FIXED = {"fixed64": (1, "<Q"), "double": (1, "<d"), "float": (5, "<f")}


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


class Schema:
    def __init__(self, text):
        text = re.sub(r"//[^\n]*", "", text)
        self.enums, self.messages = {}, {}
        for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.S):
            self.enums[name] = {word: int(number) for word, number in re.findall(r"(\w+) = (\d+)", body)}
        for name, body in re.findall(r"message (\w+) \{(.*?)\}", text, re.S):
            self.messages[name] = [(field, kind, int(number), bool(many)) for many, kind, field, number
                                   in re.findall(r"(repeated )?(\w+) (\w+) = (\d+);", body)]

    def pack(self, message, values):
        fields = {name: (kind, number, many) for name, kind, number, many in self.messages[message]}
        assert not set(values) - set(fields), f"{message} has no {set(values) - set(fields)}"
        return b"".join(self._field(*fields[name], value) for name, value in sorted(values.items(), key=lambda item: fields[item[0]][1]))

    def _field(self, kind, number, many, value):
        scalar = kind in VARINT or kind in self.enums or kind in FIXED
        if many and scalar:
            data = b"".join(self._value(kind, one)[1] for one in value)
            return varint(number << 3 | 2) + varint(len(data)) + data if data else b""
        out = b""
        for one in value if many else (value,):
            wire, data = self._value(kind, one)
            out += varint(number << 3 | wire) + (varint(len(data)) if wire == 2 else b"") + data
        return out

    def _value(self, kind, value):
        if kind in VARINT or kind in self.enums:
            return 0, varint(int(value))
        if kind in FIXED:
            wire, form = FIXED[kind]
            return wire, struct.pack(form, value)
        if kind == "string" and isinstance(value, str):
            return 2, value.encode()
        return 2, bytes(value) if kind in ("string", "bytes") else self.pack(kind, value)

    def unpack(self, message, data):
        """All fields; those that are not there have their default."""
        fields = {number: (name, kind, many) for name, kind, number, many in self.messages[message]}
        out = {name: [] if many else self._default(kind) for name, kind, many in fields.values()}
        at = 0
        while at < len(data):
            key, at = read_varint(data, at)
            wire = key & 7
            if wire == 0:
                value, at = read_varint(data, at)
            elif wire == 2:
                size, at = read_varint(data, at)
                value, at = data[at:at + size], at + size
            else:
                size = 8 if wire == 1 else 4
                value, at = data[at:at + size], at + size
            if key >> 3 not in fields:
                continue
            name, kind, many = fields[key >> 3]
            found = self._packed(kind, value) if many and wire == 2 and (kind in VARINT or kind in self.enums or kind in FIXED) \
                else [self._read(kind, value)]
            if many:
                out[name] += found
            else:
                out[name] = found[0]
        return out

    def _default(self, kind):
        if kind == "string":
            return ""
        if kind == "bytes":
            return b""
        return None if kind in self.messages else 0

    def _packed(self, kind, data):
        if kind in FIXED:
            form = FIXED[kind][1]
            return [one for (one,) in struct.iter_unpack(form, data)]
        out, at = [], 0
        while at < len(data):
            value, at = read_varint(data, at)
            out.append(value)
        return out

    def _read(self, kind, value):
        if kind in FIXED:
            return struct.unpack(FIXED[kind][1], value)[0]
        if kind == "int32":
            return value - (1 << 64) if value >> 63 else value
        if kind == "string":
            return value.decode()
        return self.unpack(kind, value) if kind in self.messages else value
