"""Real images, few of them where a network takes long to evaluate."""
import atexit
import functools
import gzip
import os
import shutil
import struct
import tempfile

from tap import Skip

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"


def fashion_mnist():
    """The whole set; a test that needs it is skipped where it is not installed."""
    if not os.path.isdir(FASHION_MNIST):
        raise Skip("dataset-fashion-mnist is not installed")
    return "fashion-mnist"


def _head_of(name, count, folder):
    """The first `count` entries of an IDX file."""
    path = os.path.join(FASHION_MNIST, name)
    with (gzip.open(path + ".gz") if os.path.exists(path + ".gz") else open(path, "rb")) as file:
        magic = file.read(4)
        extents = struct.unpack(f">{magic[3]}I", file.read(4 * magic[3]))
        size = count
        for extent in extents[1:]:
            size *= extent
        data = file.read(size)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(magic + struct.pack(f">{magic[3]}I", count, *extents[1:]) + data)


@functools.lru_cache
def few_clothes(train=2000, test=100):
    """The data set, as --data takes it, of the first images of Fashion-MNIST."""
    fashion_mnist()
    folder = tempfile.mkdtemp(prefix="clothes-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for part, count in (("train", train), ("t10k", test)):
        _head_of(f"{part}-images-idx3-ubyte", count, folder)
        _head_of(f"{part}-labels-idx1-ubyte", count, folder)
    return f"mnist:{folder}"
