"""Files of tensors for the tests of the program, written and read without its help."""
import json
import math
import pathlib
import struct

ITEM = {"F32": "f", "F64": "d", "F16": "e", "I32": "i", "I64": "q", "BOOL": "?"}


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors(tensors, pad=0):
    """Bytes of a file with these (dtype, shape, values); `pad` spaces misalign the data."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        part = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{ITEM[dtype]}", *values)
        header[name] = entry(dtype, shape, len(data), len(data) + len(part))
        data += part
    return with_header(json.dumps(header).encode() + b" " * pad, data)


def with_header(header, data, length=None):
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def read_safetensors(path):
    raw = pathlib.Path(path).read_bytes()
    n, = struct.unpack("<Q", raw[:8])
    assert n % 8 == 0
    out, covered = {}, 0
    for name, t in json.loads(raw[8:8 + n]).items():
        begin, end = t["data_offsets"]
        covered += end - begin
        part = raw[8 + n + begin:8 + n + end]
        if t["dtype"] == "BF16":
            values = [struct.unpack("<f", b"\0\0" + part[i:i + 2])[0] for i in range(0, len(part), 2)]
        else:
            code = ITEM[t["dtype"]]
            values = list(struct.unpack(f"<{len(part) // struct.calcsize(code)}{code}", part))
        out[name] = (t["dtype"], t["shape"], values)
    assert covered == len(raw) - 8 - n
    return out


def npy(shape, values, descr="<f4", order=False, version=1, header=None):
    if header is None:
        header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {tuple(shape)!r}, }}\n"
    code = {"<f4": "f", "<f2": "e", "<f8": "d", "|b1": "?"}.get(descr, "f")
    head = header.encode()
    return (b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(head)) +
            head + struct.pack(f"<{len(values)}{code}", *values))


def read_npy(path):
    raw = pathlib.Path(path).read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    n, = struct.unpack("<H", raw[8:10])
    assert (10 + n) % 64 == 0
    header = eval(raw[10:10 + n], {})  # noqa: S307 - our own output
    code = {"<f4": "f", "<f2": "e", "<f8": "d"}[header["descr"]]
    values = struct.unpack(f"<{math.prod(header['shape'])}{code}", raw[10 + n:])
    return header["shape"], list(values)


def wave(n, step=0.7):
    return [math.sin(step * i + 0.3 * step) for i in range(n)]


GOOD = {name: ("F32", [1, 1, 3, 2], wave(6)) for name in "qkv"}
