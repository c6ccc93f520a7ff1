"""probe_lab.py WAN_LAB LONGHAUL [--every] - `longhaul bench links` against what the emulator was told: round trip, rate, loss, one
row a pair of sites, and how long that takes. A busy machine makes a link slower than it is, never faster, so the best of several tries counts, and
the sample only asks for what such a machine finds too: no link is found faster or nearer than it is, nor far from it.
LONGHAUL_TORTURE=1, on an idle machine, takes each round trip with each rate and loss, queues by turns, and holds them to
5 % of the round trip and 10 % of the rate; and a short link, and a long one that is faster than the emulator, which is held to what
plain sockets get through that both ways at once. --every: each of the former with each queue, and nothing else."""
import fcntl
import importlib.machinery
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import Lab, Link, chain, mesh, run_first, skip_unless_played

BENCH = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench")
sys.path.insert(0, BENCH)
loader = importlib.machinery.SourceFileLoader("links", os.path.join(BENCH, "links"))
links_bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("links", loader))
sys.modules["links"] = links_bench
loader.exec_module(links_bench)

WAN_LAB = LONGHAUL = ""
TORTURE = os.environ.get("LONGHAUL_TORTURE", "") not in ("", "0")
EVERY = sys.argv[3:] == ["--every"]
TRIES = 6
SIOCSIFMTU = 0x8922
LEAST = 0.9 if TORTURE else 0.25  # of the rate
LEAST_FAST = 0.8                  # of the emulator's ceiling, where that is the lower one: it varies from one time to the next
MOST = 1.01                       # of the line, of which super-packets have few heads; more, where the emulator stood still for a moment
FAST = 2                          # Gb/s: from here on it may be
SITES = ("tokyo", "osaka", "nagoya", "sendai")
JOB = """[pipeline]
name = links
stages = prepare
folder = out
[prepare]
input = x.jsonl
tokenizer = vocab.json
[launch]
address = 10.90.0.1
port = 29400
secret = job.key
"""
# ms there and back, Gb/s, loss, queue in windows
CELLS = ((10, 0.3, 0, 1), (20, 0.1, 2e-3, 1))
QUEUES = (0.5, 1, 4)
LINKS = [(trip, rate, loss) for trip in (2, 10, 30, 50) for rate in (0.1, 0.3, 1) for loss in (0, 1e-3)]
ALL_CELLS = [(*link, queue) for i, link in enumerate(LINKS) for queue in (QUEUES if EVERY else (QUEUES[(i + i // 6) % 3],))]
# With buffers as short as a guess of them, or a pace that is left over, the long one carries a part.
ENDS = ((0.4, 1, 0, 1), (50, 5, 0, 1))


def is_near(found, told):
    """A round trip in ms."""
    return found < (1.05 * told + 0.5 if TORTURE else 2 * told + 20)


def left_of(row, beside):
    """Of what a pair has alone, while others are busy: the share of its slower direction."""
    return min(b / a for b, a in zip(row[f"beside_{beside}_bytes_per_second"], row["bytes_per_second"]))


def longest(trip):
    """Seconds of a first contact over a round trip that no machine's load explains: twice the goal of 3, or of 40 round
    trips and 12 bursts where that is longer. bench/links --goals holds the goal itself."""
    return 2 * max(3, 40 * trip + 12 * max(0.2, 2 * trip))


def payload(link):
    """Bytes a second of a link's rate that TCP can carry."""
    return link.rate / 8 * (link.mtu - 52) / (link.mtu + 38)


def ceiling(*cell):
    """Bytes a second each way that 16 plain sockets get through the emulator while both ways are busy, as in a probe."""
    played = links_bench.Cell(*cell)
    links_bench.wait_until_drained()
    with played.lab(WAN_LAB) as lab, ThreadPoolExecutor(2) as threads:
        ends = [threads.submit(links_bench.plain, lab, played, 8, to) for to in (0, 1)]
        return sum(end.result()["bits_per_second"] for end in ends) / 8 / 2


class Probe(unittest.TestCase):
    def bench(self, links, flags=("--json",), more="", before=lambda lab: None, ranks=1):
        """(exit code, stdout, stderr) of each site. before: called once the links are there."""
        with tempfile.TemporaryDirectory() as folder, Lab(WAN_LAB, links) as lab:
            ini = os.path.join(folder, "job.ini")
            with open(ini, "w") as f:
                f.write(JOB + "".join(f"[site.{SITES[s]}]\nhosts = h{s}:{ranks}\n" for s in range(lab.sites)) + more)
            before(lab)
            # The first makes the key that the others need.
            started = []
            for site in range(lab.sites):
                started.append(lab.popen(site, [LONGHAUL, "bench", "links", ini, "--host", f"h{site}", *flags],
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            try:
                out = [p.communicate(timeout=60) for p in started]
            finally:
                for p in started:
                    if p.poll() is None:
                        p.kill()
            kept = os.path.join(folder, "out", "links.json")
            self.kept = ""
            if os.path.exists(kept):
                with open(kept) as f:
                    self.kept = f.read()
            return [(p.returncode, *o) for p, o in zip(started, out)]

    def rows(self, links, ranks=1):
        results = self.bench(links, ranks=ranks)
        self.assertEqual([r[0] for r in results], [0] * len(results), results)
        record = json.loads(results[0][1])
        self.assertEqual(json.loads(self.kept), record)
        # What each site's kernel says: of its counters before, and of those that rose.
        self.assertEqual([m["site"] for m in record["machines"]], list(SITES[:len(results)]))
        for m in record["machines"]:
            self.assertRegex(m["before"], r"\ATCP of this kernel: .*\n(.*\n)*  counters: ")
            self.assertNotIn("congestion controls", m["after"])
        return record["links"]

    def check_cell(self, trip, rate, loss, queue):
        # Super-packets wait and are lost whole: of 64 KiB, four streams have four of them under way at once.
        link = Link(0, 1, delay=trip / 2e3, rate=rate * 1e9, loss=loss, mtu=9000 if loss and rate > 0.5 else 1500,
                    queue=max(queue * trip / 1e3 * rate * 1e9 / 8, 1 << 18 if loss else 1 << 20), offload=not loss)
        fast = rate >= FAST
        bound, least = (min(payload(link), ceiling(trip, rate, loss, queue)), LEAST_FAST) if fast else (payload(link), LEAST)
        best = None
        lost = packets = 0
        took = []
        for _ in range(TRIES):
            if fast:
                links_bench.wait_until_drained()
            row, = self.rows([link])
            self.assertGreaterEqual(row["round_trip_ns"], trip * 1e6)
            share = min(row["bytes_per_second"]) / bound
            most = max(row["bytes_per_second"]) / (link.rate / 8)
            took.append(row["took_ns"] / 1e9)
            print(f"{trip} ms, {rate} Gb/s, loss {loss:g}: {row['round_trip_ns'] / 1e6:.2f} ms, "
                  f"{share:.3f} of {8e-9 * bound:.3g} Gb/s, loss {row['loss']}, {row['took_ns'] / 1e9:.1f} s", flush=True)
            if best is None or share > best:
                best = share
            # Both ways and all tries together: 10 to 50 packets are lost in each.
            sent = sum(row["bytes_per_second"]) * 0.4
            lost += sum(row["loss"]) / 2 * sent
            packets += sent
            exact = is_near(row["round_trip_ns"] / 1e6, trip)
            # A burst that a busy machine holds up and lets go at once overflows the queue: that is loss too.
            shares = (lost / packets, *row["loss"])
            # What the emulator can't carry it loses, too.
            seen = fast or any(0.5 * loss <= share <= max(2 * loss, 5e-4) for share in shares)
            if most < MOST and best > least and exact and (seen or not TORTURE) and min(took) < longest(trip / 1e3):
                break  # all that is asked below of the tries
        self.assertLess(most, MOST)
        self.assertTrue(exact, row)
        self.assertGreater(best, least)
        self.assertLess(min(took), longest(trip / 1e3), took)
        self.assertTrue(seen or not TORTURE, shares)
        self.assertEqual(row["path_mtu"], link.mtu)
        self.assertEqual((row["sites"], row["addresses"]), (["tokyo", "osaka"], ["10.90.0.1", "10.90.0.2"]))

    def test_a_link_is_measured_as_it_was_made(self):
        """Two processors carry two links of up to 0.3 Gb/s at once and have time left; what they do not carry in one try they do in
        the next. Each is a case of its own, which has its own record. A link of 1 Gb/s has the machine to itself, and where each
        packet may be lost, so that none are carried together, large ones: of 1500 bytes both ways they are 160,000 a second."""
        cells = sorted([*ALL_CELLS, *(() if EVERY else ENDS)] if TORTURE else CELLS, key=lambda cell: cell[1])
        slow = sum(rate <= 0.3 for _, rate, _, _ in cells)
        ends = []
        for some, at_once in ((cells[:slow], 2 if TORTURE else 1), (cells[slow:], 1)):
            with ThreadPoolExecutor(at_once) as threads:
                ends += [threads.submit(type(self)().check_cell, *cell) for cell in some]
        for cell, end in zip(cells, ends):
            with self.subTest(cell=cell):
                end.result()

    def test_ends_of_different_mtu_are_told(self):
        def shorten(lab):
            with lab.socket(1) as s:
                fcntl.ioctl(s, SIOCSIFMTU, struct.pack("16si12x", b"wan0", 1400))

        results = self.bench([Link(0, 1, delay=0.002, rate=1e8)], before=shorten)
        self.assertEqual([r[0] for r in results], [0, 0], results)
        self.assertIn("packets of 1500 bytes may leave tokyo, and of 1400 osaka; expected the same MTU", results[0][2])

    def test_ranks_of_a_site_share_its_border(self):
        """Two have no more of it together than one has alone."""
        link = Link(0, 1, delay=0.002, rate=1e8)
        for _ in range(TRIES):
            row, = self.rows([link], ranks=2)
            self.assertEqual(row["together_ranks"], 2)
            shares = [b / payload(link) for b in row["together_bytes_per_second"]]
            self.assertLess(max(shares), 1.15)  # a message that is complete counts whole
            if min(shares) > LEAST:
                break
        self.assertGreater(min(shares), LEAST)

    def test_each_pair_of_sites_has_its_row(self):
        links = [Link(0, 1, delay=0.002, rate=1e8), Link(1, 2, delay=0.006, rate=1e8, seed=2)]
        told = {("tokyo", "osaka"): 4, ("osaka", "nagoya"): 12, ("tokyo", "nagoya"): 16}
        for _ in range(TRIES):
            trips = {tuple(r["sites"]): r["round_trip_ns"] / 1e6 for r in self.rows(links)}
            self.assertEqual(sorted(trips), sorted(told))
            for pair, trip in told.items():
                self.assertGreaterEqual(trips[pair], trip)
            late = {pair: trip for pair, trip in trips.items() if not is_near(trip, told[pair])}
            if not late:
                break
        self.assertEqual(late, {})

    def test_a_chain_and_a_mesh_have_records_that_differ(self):
        """By round trips: over a chain that of the outer sites is the sum of both others, over a mesh its own link's. By what pairs
        leave each other: over a chain two share a cable each way, and those of the middle none."""
        for layout, add_up in ((chain(3, delay=0.01, rate=1e8), True), (mesh(3, delay=0.01, rate=1e8), False)):
            for _ in range(TRIES):
                rows = self.rows(layout)
                trips = {tuple(r["sites"]): r["round_trip_ns"] / 1e6 for r in rows}
                outer = trips.pop(("tokyo", "nagoya"))
                self.assertEqual([r["beside_pairs"] for r in rows], [3] * 3)
                left = min(left_of(r, "all") for r in rows)
                # Osaka is the second site of one row and the first of the other.
                middle = min(left_of(r, "second" if r["sites"][1] == "osaka" else "first") for r in rows
                             if "osaka" in r["sites"]) if left < 0.75 else 1
                # Twice the 20 ms of a link, or once; a busy machine only adds to them.
                found = (outer > 0.75 * sum(trips.values()), left < 0.75 <= middle)
                if found == (add_up, add_up):
                    break
            self.assertEqual(found, (add_up, add_up), (outer, trips, left, middle))

    def test_a_table_is_printed_and_what_has_no_links_is_refused(self):
        results = self.bench([Link(0, 1, delay=0.001, rate=1e8)], flags=())
        self.assertEqual([r[0] for r in results], [0, 0], results)
        self.assertRegex(results[0][1], r"(?m)^from +to +trip_ms .*\ntokyo +osaka +\d+\.\d\d .*\nosaka +tokyo .*\n"
                                        r"tokyo-osaka: \d+\.\d\d ms, 0?\.\d+ Gb/s, .*limited by .*\(\d+\.\d s\)$")
        with tempfile.TemporaryDirectory() as folder:
            ini = os.path.join(folder, "job.ini")
            with open(ini, "w") as f:
                f.write(JOB)
            got = subprocess.run([LONGHAUL, "bench", "links", ini], capture_output=True, text=True)
            self.assertEqual(got.returncode, 1, got)
            self.assertIn("0 sections [site.NAME]; expected two or more", got.stderr)
            got = subprocess.run([LONGHAUL, "bench", "links"], capture_output=True, text=True)
            self.assertEqual(got.returncode, 1, got)
            self.assertIn("expected a PIPELINE.ini with two sections", got.stderr)


class TwoAtOnce(unittest.TestSuite):
    """As slow cells are: the links of each are of 0.1 Gb/s, three at most."""

    def run(self, result, debug=False):
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda test: test.run(result), self))
        return result


def load_tests(loader, tests, _):
    if not TORTURE:
        return tests
    cells = "test_a_link_is_measured_as_it_was_made"
    others = [name for name in loader.getTestCaseNames(Probe) if name != cells]
    return unittest.TestSuite([Probe(cells), TwoAtOnce(Probe(name) for name in others)])


if __name__ == "__main__":
    WAN_LAB, LONGHAUL = sys.argv[1:3]
    skip_unless_played(WAN_LAB)
    run_first()
    unittest.main(argv=sys.argv[:1], verbosity=2, defaultTest="Probe.test_a_link_is_measured_as_it_was_made" if EVERY else None)
