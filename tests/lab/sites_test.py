"""sites_test.py - what bench/sites predicts of a Llama of 7B, held against a table that was computed elsewhere: two sites of 8
devices at 400 TFLOP/s, 95 % of 100 Gb/s, BF16, 64 buckets, breadth-first accumulation, a step of 6.3 s."""
import importlib.machinery
import importlib.util
import os
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))
loader = importlib.machinery.SourceFileLoader("sites", os.path.join(ROOT, "bench", "sites"))
sites = importlib.util.module_from_spec(importlib.util.spec_from_loader("sites", loader))
sys.modules["sites"] = sites
loader.exec_module(sites)

BY_ROUND_TRIP = {0.4e-3: 1.003, 10e-3: 1.004, 30e-3: 1.008, 50e-3: 1.011}


def row(delay, **more):
    return sites.Row("row", "row", "-", 0, 0, sites.chain(2, delay=delay), **more)


class Prediction(unittest.TestCase):
    def test_two_sites_as_the_table_has_them(self):
        for trip, slower in BY_ROUND_TRIP.items():
            got = sites.predicted(row(trip / 2), 6.75e9, 6.3, 12.5e9, sites.Shape(1 / 64))
            self.assertLess(abs(got - slower), 6e-4, (trip, got))

    def test_a_thin_link_takes_7_4_times_the_compute_for_a_sum_in_fp32(self):
        thin = row(7.5e-3, thin=True)
        rate = sites.link_rate(thin, 1e9, 5)
        self.assertAlmostEqual(4 * 1e9 / rate, 7.4 * 5)
        # What INT8 hides behind the backward pass, two thirds of the step, is not exposed.
        hidden = 7.4 * 132 / 512 / sites.FILLED - 2 / 3 * (1 - 1e-9)
        narrow = row(7.5e-3, thin=True, border="int8")
        self.assertAlmostEqual(sites.predicted(narrow, 1e9, 5, rate, sites.Shape(0)), 1 + hidden + 7.5e-3 / 5, places=6)

    def test_a_link_takes_the_same_share_of_the_small_model_s_step(self):
        for name in ("2x40", "3x40", "2x3000"):
            one = next(r for r in sites.ROWS if r.name == name)
            small = 2 * 17e6 / sites.link_rate(one, 17e6, 4.0) / 4.0
            self.assertAlmostEqual(small, 2 * 6.738e9 / 12.5e9 / sites.LARGE_SECONDS)

    def test_bytes_take_half_of_the_compute_time(self):
        self.assertEqual([(r.cut, r.goal, 2e3 * r.links[0].delay) for r in sites.HALVES],
                         [(cut, *rest) for cut in (False, True) for rest in ((1.02, 0.4), (1.02, 10), (1.03, 30))])
        for one in sites.HALVES:
            rate = sites.link_rate(one, 17e6, 4.0)
            self.assertAlmostEqual(2 * 17e6 / rate, 2.0)
            # With the last bucket and round trips alone not hidden: of 64 the last takes 1 / 128 of the step at 95 % of the rate.
            trips = one.links[0].delay * (1 if one.cut else 2)
            self.assertAlmostEqual(sites.predicted(one, 17e6, 4.0, rate, sites.Shape(1 / 64)), 1 + 0.5 / 0.95 / 64 + trips / 4.0, places=6)

    def test_the_first_block_hides_behind_one_micro_batch_and_the_embedding_behind_nothing(self):
        # 12 layers of 8 %, an embedding of 2 %, three micro-batches; a step of 6 s of which 4 s are backward; sums take 2 s.
        of = sites.shape(50e6, 1000, 1000, 2000, 12, 3, leg_blocks=0)
        self.assertEqual([(round(share, 6), part) for share, part in of.together], [(0.02, 0)] + 12 * [(0.08, 1 / 12)] + [(0.02, 0)])
        cut, both = row(5e-3, cut=True), row(5e-3)
        rate = 100e6 / (2 * sites.FILLED)
        self.assertAlmostEqual(sites.predicted(cut, 50e6, 6, rate, of), 1 + (2 * 0.10 - 4 / 36 + 5e-3) / 6)
        # Half of the bytes in either direction of time; a block's then hide, and of the values nothing does.
        self.assertAlmostEqual(sites.predicted(both, 50e6, 6, rate, of), 1 + (1 * 0.02 + 1 * 0.10 + 10e-3) / 6)

    def test_in_legs_a_part_of_the_block_is_last(self):
        # Of a block 3, 1, 4 and 2 tenths: of the sums the first leg's are the last, 2.4 %, and of the values the first to be needed.
        of = sites.shape(50e6, 1000, 1000, 2000, 12, 3)
        self.assertEqual([round(share, 6) for share, part in of.together[:6]], [0.02, 0.024, 0.008, 0.032, 0.016, 0.024])
        self.assertAlmostEqual(sum(part for share, part in of.together), 1)
        cut, both = row(5e-3, cut=True), row(5e-3)
        rate = 100e6 / (2 * sites.FILLED)
        self.assertAlmostEqual(sites.predicted(cut, 50e6, 6, rate, of), 1 + (2 * 0.044 - 0.3 * 4 / 36 + 5e-3) / 6)
        self.assertAlmostEqual(sites.predicted(both, 50e6, 6, rate, of), 1 + (0.02 + 0.044 + 10e-3) / 6)

    def test_an_embedding_of_more_than_the_first_leg_hides_behind_the_first_block_s_weights(self):
        # An embedding of 4 %, blocks of 7.67 %; sums take 2 s, or 1 s and values as long, and half of a block's way back is 4 / 24 s.
        of = sites.shape(50e6, 2000, 1000, 2000, 12, 3)
        self.assertEqual([round(share, 6) for share, part in of.back[:7]], [0.023, 0.007667, 0.030667, 0.015333, 0.04, 0, 0.023])
        self.assertEqual([round(share, 6) for share, part in of.together[:3]], [0.04, 0.023, 0.007667])
        for parts in (of.together, of.back):
            self.assertAlmostEqual(sum(share for share, part in parts), 1)
            self.assertAlmostEqual(sum(part for share, part in parts), 1)
        cut, both = row(5e-3, cut=True), row(5e-3)
        rate = 100e6 / (2 * sites.FILLED)
        # All that is not sent when the weights have computed: with 2 s the embedding and the block, with 1 s the first leg.
        self.assertAlmostEqual(sites.predicted(cut, 50e6, 6, rate, of), 1 + (2 * (0.04 + 0.92 / 12) - 4 / 24 + 5e-3) / 6)
        first = 0.3 * 0.92 / 12
        self.assertAlmostEqual(sites.predicted(both, 50e6, 6, rate, of), 1 + (first - 0.3 * 4 / 72 + 0.04 + first + 10e-3) / 6)

    def test_a_micro_batch_alone_takes_blocks_whole(self):
        alone = sites.shape(50e6, 2000, 1000, 2000, 12, 1)
        self.assertEqual(alone.together, sites.shape(50e6, 2000, 1000, 2000, 12, 3, 0).together)
        self.assertEqual(alone.back, alone.together)

    def test_a_chain_carries_what_its_ends_send_each_other_twice(self):
        ends = next(r for r in sites.ROWS if r.name == "3x40")
        all_joined = next(r for r in sites.ROWS if r.name == "3x1000")
        self.assertEqual(sites.over_links(ends, 3.0, 6.0), (2.0, 4.0))
        self.assertEqual(sites.over_links(all_joined, 3.0, 6.0), (1.0, 2.0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
