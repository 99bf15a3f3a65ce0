"""Environments in which PyTorch may be fast on this processor. Comparisons try them all, and count the fastest."""
import atexit
import os
import shutil
import subprocess
import tempfile

# The allocator keeps what it is given back; by default it returns large blocks, and every step faults their pages in again.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "2000000000"}


def intels_kernels():
    """MKL takes its kernels for Intel's processors on AMD's as well: a library to preload says that this is one. None without a
    compiler or with another maker's processor."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        if "AuthenticAMD" not in file.read() or not shutil.which("cc"):
            return None
    folder = tempfile.mkdtemp(prefix="intels-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "intel.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input="int mkl_serv_intel_cpu_true(void) { return 1; }",
                   check=True, universal_newlines=True)
    return path


def environments(version):
    """(what a table calls it, variables) for a PyTorch of this version."""
    if version.startswith("1."):  # Debian's: OpenBLAS, which does not know new processors
        cores = "OPENBLAS_CORETYPE=SkylakeX"
        known = {"OPENBLAS_CORETYPE": "SkylakeX"}
        return [(cores, known), (cores + ", threads that sleep", {**known, "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"})]
    found = [("", {}), ("keeps memory", KEEP_MEMORY)]
    library = intels_kernels()
    if library:
        found.append(("keeps memory, Intel's kernels", {**KEEP_MEMORY, "LD_PRELOAD": library}))
    return found
