"""One progress bar over stages of known weight, on standard error.

    progress = Progress([("read", 1), ("write", 3)])
    progress.start("write"); progress.update(0.5)
    progress.finish()

Where standard error is no terminal it prints one line a stage instead.
"""

import sys
import time

WIDTH = 30
MIN_INTERVAL = 0.1


class Progress:
    """Stages are (text, expected seconds)."""

    def __init__(self, stages, stream=sys.stderr):
        self._stages = dict(stages)
        self._total = sum(self._stages.values())
        self._stream = stream
        self._live = stream.isatty()
        self._current = None
        self._begun = time.monotonic()
        self._drawn = 0.0

    def start(self, stage):
        self._current = stage
        if self._live:
            self._draw(0.0)
        else:
            print(f"demo model: {stage}", file=self._stream, flush=True)

    def update(self, fraction):
        """fraction of the current stage, 0..1"""
        if self._live and time.monotonic() - self._drawn >= MIN_INTERVAL:
            self._draw(fraction)

    def finish(self):
        seconds = time.monotonic() - self._begun
        if self._live:
            self._stream.write("\r\x1b[K")
        print(f"demo model: finished in {seconds:.0f} s", file=self._stream, flush=True)

    def _draw(self, fraction):
        self._drawn = time.monotonic()
        before = 0.0
        for stage, weight in self._stages.items():
            if stage == self._current:
                break
            before += weight
        part = min((before + self._stages[self._current] * fraction) / self._total, 1.0)
        bar = ("#" * round(part * WIDTH)).ljust(WIDTH, "-")
        self._stream.write(f"\r\x1b[Kdemo model [{bar}] {part * 100:3.0f} %  {self._current}")
        self._stream.flush()
