"""The arithmetic of the simulator, on numbers that can be worked out by hand; nothing is measured or served."""
import dataclasses
import pathlib
import sys
import unittest
import xml.etree.ElementTree
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import calibrate
import plot
import report
import routing
import simulate
from machine import Link, Machine, Rates
from measured import Measured
from model import Cost, Model, Shape

EXPERTS, TOP_K, LAYERS = 4, 2, 3
NO_LINK = calibrate.NO_LINK


def machine_of(rates, *others, **named):
    return Machine(rates, rates, *others, **named)


def plan(ranks=2):
    part = {"token_bytes": 0.0, "last_only": False}
    return {"model": "small", "layers": LAYERS, "moe_layers": LAYERS, "experts": EXPERTS, "top_k": TOP_K,
            "transfer": {"out_bytes": 10, "home_bytes": 100, "pass_bytes": 0} if ranks > 1 else
                        {"out_bytes": 0, "home_bytes": 0, "pass_bytes": 0},
            "work": {"dense": [{"name": "attention", "step_bytes": 1000.0, "token_flop": 50.0, **part},
                               {"name": "lm_head", "step_bytes": 300.0, "token_flop": 7.0, **part, "last_only": True}],
                     "attention": [{"window": 0, "token_bytes": 1.0, "token_flop": 2.0},
                                   {"window": 4, "token_bytes": 1.0, "token_flop": 2.0}],
                     "expert_bytes": 40.0, "expert_flop": 5.0, "state_bytes": 3.0, "state_flop": 1.0}}


def model(transport="alltoallv", ranks=2, whole=True):
    return Model.of_plan(plan(ranks), Shape(dp=ranks, transport=transport, expert_parallel=whole))


class Fixed:
    """Every token of a layer chooses the same experts; or token by token from a list."""

    def __init__(self, *chosen):
        self.chosen = chosen

    def draw(self, layer, count):
        return [self.chosen[token % len(self.chosen)] for token in range(count)]

    def popularity(self, layer):
        return [sum(expert in experts for experts in self.chosen) for expert in range(EXPERTS)]


def flow_of(transport, tokens, *chosen, whole=True, machine=None):
    ranks = len(tokens)
    return simulate.route(model(transport, ranks, whole), machine or machine_of(Rates(1, 1), NO_LINK, ranks_per_host=ranks),
                          Fixed(*chosen), simulate.Step(tokens), 0)


class Costs(unittest.TestCase):
    def test_what_is_read_once_and_what_for_each_token(self):
        cost = model().dense(tokens=3, rows=1, context=10)
        self.assertEqual(cost.bytes, 1000 + 300 + 3 * (10 + 4) + 3 * 3)
        self.assertEqual(cost.flop, 3 * 50 + 7 + 3 * 2 * (10 + 4) + 3)

    def test_a_rank_without_tokens_reads_nothing(self):
        self.assertEqual(model().dense(0, 0, 10), Cost())


class Cores(unittest.TestCase):
    def test_ranks_with_cores_of_their_own_wait_for_the_slowest(self):
        self.assertEqual(machine_of(Rates(1, 1), NO_LINK, 4).together([1, 5, 2, 2]), 5)

    def test_ranks_that_share_cores_take_turns(self):
        machine = machine_of(Rates(1, 1), NO_LINK, ranks_per_host=4, cores_per_host=2)
        self.assertEqual(machine.together([3, 3, 3, 3]), 6)
        self.assertEqual(machine.together([9, 1, 1, 1]), 9)  # one alone is no faster on two cores
        self.assertEqual(machine.ranks_on_core(), 2)

    def test_the_slowest_host_counts(self):
        machine = machine_of(Rates(1, 1), NO_LINK, ranks_per_host=2, cores_per_host=1)
        self.assertEqual(machine.together([1, 1, 4, 5]), 9)


class Routing(unittest.TestCase):
    def test_tokens_choose_different_experts(self):
        for exponent in (0.0, 1.5):
            for chosen in routing.Zipf(8, 4, exponent).draw(0, 50):
                self.assertEqual(len(set(chosen)), 4)

    def test_the_popular_are_chosen_more_often_the_larger_the_exponent(self):
        def most_wanted(exponent):
            source = routing.Zipf(32, 1, exponent)
            drawn = [chosen[0] for chosen in source.draw(3, 2000)]
            return drawn.count(source.order(3)[0]) / 2000
        self.assertAlmostEqual(most_wanted(0.0), 1 / 32, delta=0.02)
        harmonic = sum(1 / rank for rank in range(1, 33))
        self.assertAlmostEqual(most_wanted(1.0), 1 / harmonic, delta=0.05)

    def test_recorded_tokens_survive_being_written_down(self):
        tokens = [[[0, 15], [3, 4]], [[1, 2], [9, 10]]]
        again = routing.Recorded.of_texts(routing.Recorded.texts(tokens), 16)
        self.assertEqual(again.tokens, tokens)
        self.assertEqual(again.popularity(1)[9], 1)
        self.assertIn(again.draw(0, 1)[0], ([0, 15], [1, 2]))

    def test_linear_placement_gives_the_first_ranks_one_more(self):
        self.assertEqual(routing.linear(5, 2), [(0,), (0,), (0,), (1,), (1,)])
        self.assertEqual(routing.linear(2, 4), [(0,), (1,)])

    def test_copies_of_hot_experts_even_out_the_ranks(self):
        popularity = [9, 5, 1, 1, 1, 1, 1, 1]  # linear over 4: 14 of 20 on the first rank
        holders = routing.balanced(popularity, 4, redundant=4)
        self.assertTrue(all(holders))
        loads = [sum(popularity[expert] / len(held) for expert, held in enumerate(holders) if rank in held)
                 for rank in range(4)]
        self.assertLess(max(loads) / (sum(loads) / 4), 1.2)
        self.assertLessEqual(max(sum(rank in held for held in holders) for rank in range(4)), 3)


class Flows(unittest.TestCase):
    """Experts 0 and 1 are on rank 0, 2 and 3 on rank 1. One token of rank 0, two of rank 1."""

    def test_alltoallv_sends_a_token_once_to_each_rank(self):
        flow = flow_of("alltoallv", [1, 2], [2, 3], [0, 2], [0, 1])
        self.assertEqual(flow.sent, [10 + 3 * 100, 2 * 10 + 2 * 100])
        self.assertEqual(flow.loads, [{0: 2, 1: 1}, {2: 2, 3: 1}])

    def test_low_latency_sends_it_once_to_each_expert(self):
        flow = flow_of("low_latency", [1, 2], [2, 3], [0, 2], [0, 1])
        self.assertEqual(flow.sent, [2 * 10 + 3 * 100, 3 * 10 + 2 * 100])
        self.assertEqual(flow.messages, [5, 5])

    def test_allgather_sends_it_to_all(self):
        flow = flow_of("allgather_reducescatter", [1, 2, 0], [0, 1])
        self.assertEqual(flow.sent, [2 * 10 + 4 * 100, 4 * 10, 0])

    def test_cut_experts_send_every_token_home_from_every_rank(self):
        flow = flow_of("allgather_reducescatter", [1, 2], [0, 1], whole=False)
        self.assertEqual(flow.sent, [10 + 2 * 100, 20 + 100])
        self.assertEqual(flow.loads, [{0: 3, 1: 3}] * 2)

    def test_ranks_of_a_host_share_its_link(self):
        machine = machine_of(Rates(1, 1), NO_LINK, ranks_per_host=2)
        flow = flow_of("alltoallv", [1, 1, 0, 0], [0, 2], machine=machine)  # experts 0 to 3 on ranks 0 to 3
        self.assertEqual(flow.host_out, [20, 200])
        self.assertEqual(flow.host_in, [200, 20])
        self.assertEqual(flow.sent, [100, 10, 0, 0])  # rank 1's token to rank 0 and home


class Steps(unittest.TestCase):
    RATES = Rates(per_byte=0.0, per_flop=1.0)

    def step(self, tokens, *chosen, machine=None, transport="alltoallv"):
        return simulate.simulate(model(transport, len(tokens)), machine or machine_of(self.RATES, NO_LINK, len(tokens)),
                                 Fixed(*chosen), simulate.Step(tokens, context=0))

    def test_the_parts_of_a_step(self):
        step = self.step([1, 3], [0, 2])
        self.assertEqual(step.compute, 2 * 58 + LAYERS * 20)  # 58 for a token; 4 tokens x 5 on each rank
        self.assertEqual(step.lockstep, 58)
        self.assertEqual((step.imbalance, step.communication), (0, 0))
        self.assertEqual(step.seconds, 3 * 58 + LAYERS * 20)

    def test_all_tokens_on_one_rank(self):
        step = self.step([2, 2], [0, 1])
        self.assertEqual(step.imbalance, LAYERS * 20)
        self.assertEqual(step.seconds, 2 * 58 + LAYERS * 40)

    def test_ranks_on_one_core_take_twice_as_long_and_wait_for_nobody(self):
        machine = machine_of(self.RATES, NO_LINK, ranks_per_host=2, cores_per_host=1)
        step = self.step([2, 2], [0, 1], machine=machine)
        self.assertEqual(step.seconds, 4 * 58 + LAYERS * 40)
        self.assertEqual((step.imbalance, step.lockstep), (0, 0))

    def test_operations_messages_and_switches(self):
        link = Link(latency=7.0, message=1.0, bytes_per_second=1.0, local_bytes_per_second=float("inf"))
        spread = self.step([1, 1, 1, 1], [0, 1], machine=machine_of(self.RATES, link))
        self.assertEqual(spread.latency, LAYERS * 3 * (7 + 3))
        # From rank 0 home to three others, and its own token to rank 1.
        self.assertEqual(spread.bandwidth, LAYERS * (3 * 100 + 10))
        shared = self.step([1, 1], [0, 2], machine=machine_of(self.RATES, link, 2, cores_per_host=1, switch=5.0))
        self.assertEqual(shared.latency, LAYERS * 3 * (7 + 1 + 5))
        self.assertEqual(shared.bandwidth, 0)

    def test_what_limits_first(self):
        self.assertEqual(simulate.StepTime(compute=1, imbalance=3, bandwidth=2).limits(), "imbalance")

    def test_copies_of_a_hot_expert_help(self):
        chosen = ([0, 1], [0, 2], [0, 3], [0, 1])
        machine = machine_of(self.RATES, NO_LINK, 4)
        alone = simulate.simulate(model(ranks=4), machine, Fixed(*chosen), simulate.Step([4] * 4, 0))
        copied = simulate.simulate(model(ranks=4), machine, Fixed(*chosen),
                                   simulate.Step([4] * 4, 0, balance=True, redundant_experts=4))
        self.assertLessEqual(copied.imbalance, alone.imbalance / 2)
        self.assertAlmostEqual(copied.compute, alone.compute)


class Fits(unittest.TestCase):
    def test_least_squares_finds_what_made_the_numbers(self):
        rows = [[1.0, 2.0, 0.0], [3.0, 1.0, 5.0], [2.0, 2.0, 1.0], [1.0, 7.0, 3.0]]
        truth = [0.5, 2.0, 0.25]
        found = calibrate.solve(rows, [(sum(a * b for a, b in zip(row, truth)) + 4, 4) for row in rows])
        for one, other in zip(found, truth):
            self.assertAlmostEqual(one, other, places=9)

    def test_nothing_costs_less_than_nothing(self):
        found = calibrate.solve([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [(3.0, 0), (2.0, 0), (1.0, 0)])
        self.assertEqual(found[1], 0)
        self.assertGreater(found[0], 0)

    def test_sequences_are_spread_evenly(self):
        self.assertEqual(calibrate.spread(6, 4), [2, 2, 1, 1])

    def test_four_ranks_are_predicted_from_one_and_two(self):
        """Of a machine that is exactly as the model says, the prediction is exact but for what is assumed of messages."""
        rates, experts = Rates(2e-6, 1e-6), Rates(3e-6, 1e-6)
        link, put = Link(4e-5, 4e-5, float("inf"), 1e6), 1e-6
        tokens = [[[1, 2]] * LAYERS]
        # No chance in it, and more experts for more tokens.
        source = Fixed([1, 2], [1, 2], [0, 3], [0, 1])

        def planned(_rota, _path, shape):
            return Model.of_plan(plan(shape.dp), shape)

        def machine(transport, ranks, cores):
            local = Link(8e-5, put, float("inf"), float("inf")) if transport == "low_latency" else link
            return Machine(rates, experts, local, ranks, cores, 5e-5)

        def figures(ranks, cores, transport, batch):
            model = planned(None, None, Shape(ranks, transport=transport))
            step = simulate.Step(calibrate.spread(batch, ranks), calibrate.CONTEXT)
            where = machine(transport, ranks, cores)
            own = rates.seconds(model.dense(batch / ranks, batch / ranks, calibrate.CONTEXT))
            for layer in range(LAYERS):
                loads = simulate.route(model, where, source, step, layer).loads
                own += sum(simulate.expert_seconds(model, experts, it) for it in loads) / ranks
            return {"seconds": simulate.simulate(model, where, source, step).seconds,
                    "step_seconds": [own + 2] * ranks, "communication_seconds": [2] * ranks}

        def rounds(ranks, cores, transport, batches):
            decode = {str(batch): figures(ranks, cores, transport, batch) for batch in batches}
            return {"rounds": [{"decode": decode}]}

        setups = {"one_thread": rounds(1, 1, "alltoallv", (1, 4, 16, 64))}
        setups["one_thread_mxfp4"] = setups["one_thread"]
        for transport in simulate.OPERATIONS:
            for name, ranks, cores in (("ep2_{}", 2, 2), ("ep2_{}_one_core", 2, 1), ("ep4_{}", 4, 2)):
                setups[name.format(transport)] = rounds(ranks, cores, transport, (2, 4, 16, 64))
        measured = Measured({"setups": setups, "routing": routing.Recorded.texts(tokens), "speed": [{"gb_per_second": 1}]})
        with (mock.patch.object(Model, "planned", planned),
              mock.patch.object(routing.Recorded, "draw", lambda _, layer, count: source.draw(layer, count))):
            found = calibrate.Calibration(measured, None, None, None)
            self.assertAlmostEqual(found.mxfp4_rates.per_flop, rates.per_flop, delta=1e-8)
            self.assertAlmostEqual(found.links["alltoallv"].message, link.message, delta=1e-7)
            for transport in simulate.OPERATIONS:
                for batch in (4, 16, 64):
                    truth = measured.decode_seconds(f"ep4_{transport}", batch)
                    self.assertAlmostEqual(found.predicted(4, transport, batch).seconds / truth, 1, delta=0.01)


def measured_of(**setups):
    found = {name: {"rounds": [{"seconds": seconds} for seconds in rounds]} for name, rounds in setups.items()}
    return Measured({"setups": found, "routing": [], "speed": [{"gb_per_second": 10}]})


class Pages(unittest.TestCase):
    def test_tables_are_put_where_the_page_has_a_place_for_them(self):
        page = report.fill("a\n<!-- begin one -->\nold\n<!-- end one -->\nb", {"one": [["x", "y"], ["1", "2"]]})
        self.assertEqual(page, "a\n<!-- begin one -->\n| x | y |\n|---|---|\n| 1 | 2 |\n<!-- end one -->\nb")
        with self.assertRaises(SystemExit):
            report.fill("nothing", {"one": [["x"]]})

    def test_ratios_are_of_medians(self):
        measured = measured_of(dp2=[4, 2, 5], two_threads=[2, 2, 1])
        self.assertEqual(report.ratio(measured, "dp2", lambda it: it["seconds"]), 0.5)

    def test_bars_are_as_long_as_the_parts(self):
        step = simulate.StepTime(compute=3.0, latency=1.0)
        drawing = xml.etree.ElementTree.fromstring(plot.bars([("a & b", [("8 ranks", step)])]))
        widths = [float(it.get("width")) for it in drawing.iter("{http://www.w3.org/2000/svg}rect")
                  if it.get("height") == str(plot.BAR)]
        self.assertEqual(len(widths), len(dataclasses.fields(step)))
        self.assertAlmostEqual(sum(widths), plot.WIDTH, delta=0.5)
        self.assertAlmostEqual(widths[0] / widths[3], 3, delta=0.01)


if __name__ == "__main__":
    unittest.main()
