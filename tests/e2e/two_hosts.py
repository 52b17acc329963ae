"""Two network namespaces as two hosts, and a link of 1 Gbit/s between them: what a test of two hosts needs.

    problem = two_hosts.refuse()                  # why there can be none here; nothing: they can be made
    with two_hosts.TwoHosts(folder) as hosts:
        server = harness.Server(..., "--hostfile", hosts.hostfile, env=hosts.env)
        hosts.sent()                              # bytes that the first host's interface has sent so far
The thread that enters is on the first host until it leaves, with all threads and processes that it starts. mpirun
reaches the second one by a script in ssh's place, which gives it a host name of its own too.
"""
import ctypes
import json
import os
import pathlib
import shutil
import subprocess

CLONE_NEWNET = 0x40000000
RATE = "1gbit"
_libc = ctypes.CDLL(None, use_errno=True)


def _run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def _enter(path):
    with open(path, "rb") as namespace:
        if _libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")


def refuse():
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool} in PATH (Debian: iproute2, util-linux)"
    try:
        with TwoHosts(pathlib.Path("/tmp"), enter=False):
            return None
    except RuntimeError as problem:
        return str(problem)


class TwoHosts:
    def __init__(self, folder, enter=True):
        self.folder, self.enter = pathlib.Path(folder), enter
        self.names = [f"rota{os.getpid()}{side}" for side in "ab"]
        self.links = [f"veth{side}" for side in "ab"]
        self.addresses = ["10.211.7.1", "10.211.7.2"]

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self._delete()
            raise
        if self.enter:
            self.hostfile = self.folder / "hosts"
            self.hostfile.write_text("".join(f"{address} slots=1\n" for address in self.addresses))
            agent = self.folder / "agent"
            agent.write_text(f"""#!/bin/sh
# Called as ssh is: HOST COMMAND...
[ "$1" = {self.addresses[1]} ] || {{ echo "no host $1" >&2; exit 255; }}
shift
exec nsenter --net=/run/netns/{self.names[1]} unshare --uts sh -c "echo second >/proc/sys/kernel/hostname; $*"
""")
            agent.chmod(0o755)
            self.env = {"OMPI_MCA_plm_rsh_agent": str(agent)}
            self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            _enter(f"/run/netns/{self.names[0]}")
        return self

    def __exit__(self, *_):
        if self.enter:
            _enter(f"/proc/self/fd/{self.home}")
            os.close(self.home)
        self._delete()

    def sent(self):
        """Of each host's interface: bytes with all headers."""
        counters = []
        for name, link in zip(self.names, self.links):
            shown = json.loads(_run("ip", "-n", name, "-j", "-s", "link", "show", "dev", link).stdout)
            counters.append(shown[0]["stats64"]["tx"]["bytes"])
        return counters

    def _make(self):
        for name in self.names:
            self._must("ip", "netns", "add", name)
        self._must("ip", "link", "add", self.links[0], "netns", self.names[0], "type", "veth",
                   "peer", "name", self.links[1], "netns", self.names[1])
        for name, link, address in zip(self.names, self.links, self.addresses):
            self._must("ip", "-n", name, "addr", "add", f"{address}/30", "dev", link)
            for device in ("lo", link):
                self._must("ip", "-n", name, "link", "set", device, "up")
            self._must("tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf", "rate", RATE,
                       "burst", "256kb", "latency", "50ms")

    def _delete(self):
        for name in self.names:
            _run("ip", "netns", "del", name)

    @staticmethod
    def _must(*command):
        done = _run(*command)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
