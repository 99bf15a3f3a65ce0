"""Two network namespaces that a link connects, for programs that need a network between two hosts. Needs root."""
import ctypes
import os
import subprocess

CLONE_NEWNET = 0x40000000


def run(*words):
    subprocess.run(words, check=True)


class TwoHosts:
    """The link has a rate, as tc writes it ("200mbit"). `names` are the namespaces, `interfaces` their ends of the link,
    and `addresses` the addresses of these ends."""

    def __init__(self, rate):
        self.rate = rate
        self.names = [f"host{os.getpid()}{side}" for side in "ab"]
        self.interfaces = [f"v{os.getpid()}{side}" for side in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def __enter__(self):
        for name in self.names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", self.interfaces[0], "type", "veth", "peer", "name", self.interfaces[1])
        for name, end, address in zip(self.names, self.interfaces, self.addresses):
            run("ip", "link", "set", end, "netns", name)
            inside = ("ip", "netns", "exec", name)
            run(*inside, "ip", "addr", "add", f"{address}/24", "dev", end)
            run(*inside, "ip", "link", "set", end, "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "tc", "qdisc", "add", "dev", end, "root", "tbf", "rate", self.rate, "burst", "256k", "latency", "50ms")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def enter_host(name):
    """Moves the calling thread, and the threads that it will start, to a namespace."""
    with open(f"/run/netns/{name}", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {name}")
