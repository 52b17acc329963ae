"""Which experts tokens choose, and which ranks hold them.

    routing = Zipf(experts=128, top_k=4, exponent=0.8, seed=1)     # or Recorded(tokens)
    chosen = routing.draw(layer, count)                            # [count][k], distinct
    placement = linear(experts=128, ranks=8)                       # [expert] -> ranks that hold it
    placement = balanced(routing.popularity(layer), ranks=8, redundant=16)
"""
import bisect
import itertools
import random


class Recorded:
    """Tokens of real answers, drawn anew. tokens: [tokens][layers][k]; written as a text for each, a hexadecimal digit for
    each expert."""

    @staticmethod
    def texts(tokens):
        return [" ".join("".join(f"{expert:x}" for expert in layer) for layer in token) for token in tokens]

    @staticmethod
    def of_texts(texts, experts, seed=1):
        return Recorded([[[int(digit, 16) for digit in layer] for layer in text.split()] for text in texts], experts, seed)

    def __init__(self, tokens, experts, seed=1):
        self.tokens, self.experts, self.random = tokens, experts, random.Random(seed)

    def draw(self, layer, count):
        return [token[layer % len(token)] for token in self.random.choices(self.tokens, k=count)]

    def popularity(self, layer):
        counts = [0] * self.experts
        for token in self.tokens:
            for expert in token[layer % len(token)]:
                counts[expert] += 1
        return counts


class Zipf:
    """The n-th most popular expert is wanted n^-exponent times as much as the first; which one that is, changes from layer
    to layer. Exponent 0: all alike."""

    def __init__(self, experts, top_k, exponent, seed=1):
        self.experts, self.top_k, self.seed = experts, top_k, seed
        self.random = random.Random(seed)
        self.weights = [(rank + 1) ** -exponent for rank in range(experts)]
        self.cumulative = list(itertools.accumulate(self.weights))

    def order(self, layer):
        order = list(range(self.experts))
        random.Random(f"{self.seed}:{layer}").shuffle(order)
        return order

    def draw(self, layer, count):
        order = self.order(layer)
        return [[order[place] for place in self.places()] for _ in range(count)]

    def places(self):
        """top_k different ones, one after another from those that are left."""
        found = set()
        while len(found) < self.top_k:
            found.add(bisect.bisect_left(self.cumulative, self.random.random() * self.cumulative[-1]))
        return sorted(found)

    def popularity(self, layer):
        weights = [0.0] * self.experts
        for place, expert in enumerate(self.order(layer)):
            weights[expert] = self.weights[place]
        return weights


def linear(experts, ranks):
    """The first ranks hold one more where they do not divide, as `--expert-placement-strategy linear`."""
    share, more = divmod(experts, ranks)
    holders = [rank for rank in range(ranks) for _ in range(share + (rank < more))]
    return [(rank,) for rank in holders]


def balanced(popularity, ranks, redundant):
    """As `--enable-eplb` would place them: copies of the hottest, then the heaviest copy to the lightest rank with room."""
    copies = [1] * len(popularity)
    for _ in range(redundant):
        open_to_more = [expert for expert in range(len(copies)) if copies[expert] < ranks]
        copies[max(open_to_more, key=lambda expert: popularity[expert] / copies[expert])] += 1
    room = -(-sum(copies) // ranks)
    load, held = [0.0] * ranks, [[] for _ in range(ranks)]
    pieces = sorted(((popularity[expert] / copies[expert], expert) for expert in range(len(copies))
                     for _ in range(copies[expert])), reverse=True)
    for weight, expert in pieces:
        ready = [rank for rank in range(ranks) if len(held[rank]) < room and expert not in held[rank]]
        if not ready:
            continue  # only copies that its holders have already
        rank = min(ready, key=lambda rank: (load[rank], len(held[rank])))
        held[rank].append(expert)
        load[rank] += weight
    return [tuple(rank for rank in range(ranks) if expert in held[rank]) for expert in range(len(popularity))]
