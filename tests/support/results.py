"""Results in JSON: their checksum as docs/results.md describes it, and their values."""
import ctypes
import ctypes.util
import json

_XXHASH = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_XXHASH.XXH3_64bits.restype = ctypes.c_uint64
_XXHASH.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def _number(value):
    if not isinstance(value, float):
        return json.dumps(value)
    text = "%.17g" % value
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa}e{int(exponent)}"
    return text if "." in text else text + ".0"


def _canonical(value):
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _number(value)


def checksum(result):
    data = _canonical({key: value for key, value in result.items() if key not in ("options", "provenance", "checksum")}).encode()
    return f"{_XXHASH.XXH3_64bits(data, len(data)):016x}"


def seal(result):
    return {**result, "checksum": checksum(result)}


def leaves(value, path=()):
    """The path to each value that is no object and no list."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def changed(result, path, change):
    """A copy of the result in which change(value) stands at the path."""
    if not path:
        return change(result)
    copy = dict(result) if isinstance(result, dict) else list(result)
    copy[path[0]] = changed(result[path[0]], path[1:], change)
    return copy
