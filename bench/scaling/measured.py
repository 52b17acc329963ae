"""What measure.py wrote.

    measured = Measured(json.loads(path.read_text()))
    measured.median("dp2", lambda it: it["decode"]["16"]["seconds"])     # over the rounds
"""
import statistics


class Measured:
    def __init__(self, data):
        self.setups, self.routing = data["setups"], data["routing"]
        # Of one thread: read bandwidth and peak arithmetic.
        self.speed = {name: statistics.median(it[name] for it in data["speed"]) for name in data["speed"][0]}

    def rounds(self, setup):
        return self.setups[setup]["rounds"]

    def median(self, setup, value):
        return statistics.median(map(value, self.rounds(setup)))

    def batches(self, setup):
        return sorted(map(int, self.rounds(setup)[0]["decode"]))

    def decode_seconds(self, setup, batch):
        return self.median(setup, lambda it: it["decode"][str(batch)]["seconds"])
