"""Where a stopped process is: which of the program's functions its threads are inside of.

    inside = Functions(harness.ROTA, r"start_dispatch|finish_dispatch")
    inside.any_thread_of(pid)                     # pid is stopped

Looks at the words of each stack for addresses inside those functions: a return address of a frame. A word that
is no address can look like one, so that this serves to aim, and not to prove.
"""
import bisect
import pathlib
import re
import struct
import subprocess

STACK_BYTES = 1 << 16  # of the innermost frames


class Functions:
    def __init__(self, program, pattern):
        self.program = str(pathlib.Path(program).resolve())
        listed = subprocess.run(["nm", "-S", "--defined-only", self.program], stdout=subprocess.PIPE, text=True,
                                check=True).stdout
        found = [(int(address, 16), int(size, 16)) for address, size, _, name in
                 (line.split(None, 3) for line in listed.splitlines() if len(line.split()) == 4)
                 if re.search(pattern, name)]
        self.begins = sorted(found)
        if not found:
            raise AssertionError(f"{self.program} has no symbols like {pattern}")

    def contains(self, address):
        at = bisect.bisect_right(self.begins, (address, 1 << 62)) - 1
        return at >= 0 and address - self.begins[at][0] < self.begins[at][1]

    def any_thread_of(self, pid):
        process = pathlib.Path(f"/proc/{pid}")
        regions = [line.split() for line in (process / "maps").read_text().splitlines()]
        bounds = [(*(int(end, 16) for end in region[0].split("-")), region[-1]) for region in regions]
        base = min(begin for begin, _, name in bounds if name == self.program)
        with open(process / "mem", "rb") as memory:
            for thread in (process / "task").iterdir():
                fields = (thread / "syscall").read_text().split()
                if fields[0] == "running":
                    continue
                stack = int(fields[-2], 16)
                end = next((end for begin, end, _ in bounds if begin <= stack < end), stack)
                memory.seek(stack)
                data = memory.read(min(STACK_BYTES, end - stack) & ~7)
                if any(self.contains(word - base) for word, in struct.iter_unpack("<Q", data)):
                    return True
        return False
