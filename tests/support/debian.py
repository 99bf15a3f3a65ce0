"""Debian in a folder, for tests that need a machine of their own: made by debootstrap, entered in namespaces of its own."""
import os
import shutil
import subprocess

from program import BUILD
from tap import Skip, expect_equal

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_debian(root, *options, suite="bookworm"):
    """Packages that were downloaded before are kept in the build's folder."""
    if os.getuid() != 0 or not shutil.which("debootstrap"):
        raise Skip("needs root and debootstrap")
    cache = os.path.join(os.path.abspath(BUILD), "debian-packages")
    os.makedirs(cache, exist_ok=True)
    made = subprocess.run(["debootstrap", "--variant=minbase", f"--cache-dir={cache}", *options, suite, root],
                          capture_output=True, text=True, env=dict(os.environ, container="lxc"))  # makes do without devices
    printed = made.stdout[-3000:] + made.stderr[-3000:]
    if "Failed getting release" in printed or "Couldn't download" in printed:
        raise Skip("debootstrap: no packages: " + printed[-200:])
    expect_equal(made.returncode, 0, "exit code of debootstrap", printed)
    shutil.copy("/etc/resolv.conf", os.path.join(root, "etc"))


def inside(root, *words, user="root", folder="/", code=0, limit=900, source=None, **variables):
    """Runs a command there with an environment of its own; returns its output. `source` is a folder that is mounted
    as /src. If `code` is None, any exit code is accepted."""
    script = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" && exec chroot "$@"'
    if source:
        script = f'mount --bind -o ro "{source}" "$0/src" && ' + script
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, root, f"--userspec={user}", root,
                           "env", "-C", folder, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit,
                          env={"PATH": PATH, "HOME": "/root", **variables})
    if code is not None:
        expect_equal(done.returncode, code, f"{words}: exit code", done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout
