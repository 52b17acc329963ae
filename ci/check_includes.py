#!/usr/bin/env python3
"""Holds every #include to the direction of the house: a room includes only the rooms it names.

The rooms and what each may include come from the rota_room(... DEPENDS ...) line of its CMakeLists.txt,
so the build and this check cannot disagree. Also refused: a cycle among rooms, and files over 800 lines.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
LONGEST = 800
SUFFIXES = {".h", ".cc", ".rs", ".py", ".js", ".css"}


def rooms():
    found = {}
    for listing in SRC.glob("*/CMakeLists.txt"):
        call = re.search(r"rota_room\(([^)]*)\)", listing.read_text())
        if call:
            words = call.group(1).split()
            depends = []
            if "DEPENDS" in words:
                for word in words[words.index("DEPENDS") + 1:]:
                    if word.isupper():
                        break
                    depends.append(word)
            found[words[0]] = set(depends)
    return found


def cycle(graph):
    done, path = set(), []

    def visit(room):
        if room in path:
            return path[path.index(room):] + [room]
        if room in done:
            return None
        path.append(room)
        for other in sorted(graph.get(room, ())):
            loop = visit(other)
            if loop:
                return loop
        path.pop()
        done.add(room)
        return None

    for room in graph:
        loop = visit(room)
        if loop:
            return loop
    return None


def main():
    graph, problems = rooms(), []
    loop = cycle(graph)
    if loop:
        problems.append("rooms depend on one another in a circle: " + " -> ".join(loop))
    for path in sorted(SRC.rglob("*")):
        if path.suffix not in {".h", ".cc"}:
            continue
        room = path.relative_to(SRC).parts[0]
        allowed = graph.get(room, set()) | {room}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            target = match.group(1).split("/")[0]
            if target in graph and target not in allowed:
                problems.append(f"{path.relative_to(ROOT)}:{number}: room {room} may not include room {target}; "
                                f"it may include: {', '.join(sorted(allowed))}")
    for folder in ("src", "apps", "tests", "tools", "bench", "ci"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SUFFIXES and "target" not in path.parts:
                lines = len(path.read_text().splitlines())
                if lines > LONGEST:
                    problems.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {LONGEST} can be read in a sitting")
    for problem in problems:
        print(problem)
    print(f"include directions: {len(graph)} rooms, {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
