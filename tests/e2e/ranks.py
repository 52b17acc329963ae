"""What tests of several ranks share: a server whose ranks, files and processes can be counted.

    with RanksServer(model, "-dp", 3, "-ep") as server: server.rank_pids()
    server.left                                   # what lies in its folder after its end
"""
import pathlib
import tempfile
import time

import harness


def stat_of(pid):
    """Name, state and parent of a process; nothing if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:].rsplit(")", 1)
    fields = rest.split()
    return name, fields[0], int(fields[1])


def alive(pid):
    found = stat_of(pid)
    return found is not None and found[1] != "Z"


def variables_of(pid):
    """A process's environment at its start; empty if it has ended."""
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)


def shared_memory():
    """OpenMPI's and ours; other programs' files come and go."""
    return {it.name for it in pathlib.Path("/dev/shm").iterdir()
            if any(word in it.name for word in ("vader", "ompi", "osc", "rota", "pmix", "sm_segment"))}


def wait_until(condition, seconds, pause=0.02):
    """Whether the condition has become true within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class RanksServer(harness.Server):
    """A server whose run folders are in a folder of the test's own."""

    def __init__(self, model, *flags, env=None):
        self.runtime = tempfile.TemporaryDirectory()
        super().__init__(model, *flags, env={"XDG_RUNTIME_DIR": self.runtime.name, **(env or {})})

    def stop(self):
        super().stop()
        self.left = sorted(it.name for it in pathlib.Path(self.runtime.name).iterdir())
        self.runtime.cleanup()

    def topology(self):
        return self.json("GET", "/v1/rota/topology")

    def rank_pids(self):
        return [rank["pid"] for rank in self.topology()["ranks"]]

    def processes(self):
        """All that live of this server, by what it gave them to live with: {pid: variables}."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            variables = variables_of(folder.name)
            if variables.get("XDG_RUNTIME_DIR") == self.runtime.name and alive(folder.name):
                found[int(folder.name)] = variables
        return found

    def loading_ranks(self):
        """{rank: pid} of the ranks that live, ready or not."""
        return {int(variables["OMPI_COMM_WORLD_RANK"]): pid for pid, variables in self.processes().items()
                if "OMPI_COMM_WORLD_RANK" in variables}

    def is_ready(self):
        return self.request("GET", "/health").status == 200
