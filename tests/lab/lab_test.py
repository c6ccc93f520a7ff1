"""lab_test.py WAN_LAB - what the emulator of long links does is measured with plain sockets: delay, rate, loss, the
queue, a cut, and the ways through a chain and a mesh. It is never early; how late it is depends on what else the machine
does, so the best of several tries counts."""
import os
import socket
import statistics
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import Lab, Link, chain, mesh, run_first, skip_unless_played

PROGRAM = ""
HEADS = 28 + 38  # of a datagram: IP and UDP, and Ethernet around it


def receive(sock, seconds):
    """(when, datagram) of all that comes until there is silence for that long."""
    got = []
    sock.settimeout(seconds)
    try:
        while True:
            data = sock.recv(65536)
            got.append((time.monotonic(), data))
    except TimeoutError:
        return got


def trip(lab, a, b, wait=1.0):
    """Seconds there and back of a byte, or None."""
    with lab.socket(a) as one, lab.socket(b) as two:
        begin = time.monotonic()
        one.sendto(b"x", two.getsockname())
        two.settimeout(wait)
        one.settimeout(wait)
        try:
            data, sender = two.recvfrom(10)
            two.sendto(data, sender)
            one.recv(10)
        except TimeoutError:
            return None
        return time.monotonic() - begin


class Emulator(unittest.TestCase):
    def lab(self, links):
        made = Lab(PROGRAM, links)
        self.addCleanup(made.close)
        return made

    def test_a_byte_takes_the_delay_each_way(self):
        for delay in (0.0002, 0.005, 0.025):
            with Lab(PROGRAM, [Link(0, 1, delay=delay)]) as lab:
                trips = [trip(lab, 0, 1) for _ in range(20)]
                while min(trips) > 2 * delay + 0.003 and len(trips) < 200:
                    trips.append(trip(lab, 0, 1))
                print(f"delay {2e3 * delay:g} ms there and back: least {1e3 * min(trips):.2f}, "
                      f"median {1e3 * statistics.median(trips):.2f} ms")
                self.assertGreaterEqual(min(trips), 2 * delay)
                self.assertLess(min(trips), 2 * delay + 0.003)
                lab.set(0, delay=delay + 0.01)
                self.assertGreaterEqual(trip(lab, 0, 1), 2 * delay + 0.02)

    def test_a_train_leaves_at_the_rate(self):
        # 400 datagrams of 1,400 bytes: 47 ms at 100 Mb/s. The receiver may be late for the first, never early.
        lab = self.lab([Link(0, 1, delay=0.001, rate=1e8, queue=1e7)])
        wire = 399 * (1400 + HEADS) * 8 / 1e8
        took = []
        while len(took) < 3 or (min(took) > 1.1 * wire + 0.003 and len(took) < 20):
            with lab.socket(0) as one, lab.socket(1) as two:
                two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                begin = time.monotonic()
                for _ in range(400):
                    one.sendto(bytes(1400), two.getsockname())
                got = receive(two, 0.3)
            self.assertEqual(len(got), 400)
            took.append(got[-1][0] - begin - 0.001)
        print(f"a train of {1e3 * wire:.1f} ms on the wire took {1e3 * min(took):.1f} ms at least")
        self.assertGreaterEqual(min(took), wire)
        self.assertLess(min(took), 1.1 * wire + 0.003)

    def test_packets_are_lost_at_random_and_again_the_same(self):
        arrived = []
        for _ in range(2):
            with Lab(PROGRAM, [Link(0, 1, delay=0.0005, loss=0.05, queue=1e8)]) as lab:
                with lab.socket(0) as one, lab.socket(1) as two:
                    two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                    for i in range(4000):
                        one.sendto(i.to_bytes(4, "big"), two.getsockname())
                    arrived.append([int.from_bytes(data, "big") for _, data in receive(two, 0.3)])
                there = lab.counts()[0][0]
                self.assertEqual((there.packets, there.lost), (len(arrived[-1]), 4000 - len(arrived[-1])))
        self.assertEqual(arrived[0], sorted(arrived[0]))
        self.assertEqual(arrived[0], arrived[1])
        lost = 4000 - len(arrived[0])
        print(f"{lost} of 4000 lost at 5 %")
        self.assertLess(abs(lost - 200), 70)  # five standard deviations

    def test_late_packets_are_overtaken_and_none_is_lost(self):
        lab = self.lab([Link(0, 1, delay=0.0005, late=0.05, queue=1e8)])
        with lab.socket(0) as one, lab.socket(1) as two:
            two.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            for i in range(4000):
                one.sendto(i.to_bytes(4, "big"), two.getsockname())
            got = [int.from_bytes(data[:4], "big") for _, data in receive(two, 0.3)]
        self.assertEqual(sorted(got), list(range(4000)))
        highest, overtaken = -1, 0
        for i in got:
            overtaken += i < highest
            highest = max(highest, i)
        there = lab.counts()[0][0]
        print(f"{there.late} of 4000 late at 5 %, {overtaken} overtaken")
        self.assertLess(abs(there.late - 200), 70)
        self.assertLessEqual(overtaken, there.late)
        self.assertGreater(overtaken, 0.5 * there.late)

    def test_a_single_connection_is_cut(self):
        lab = self.lab([Link(0, 1, delay=0.001)])
        pairs = []
        with lab.socket(1, socket.SOCK_STREAM) as door:
            door.listen()
            for _ in range(2):
                one = lab.socket(0, socket.SOCK_STREAM)
                one.connect(door.getsockname())
                pairs.append((one, door.accept()[0]))
        lab.single(0)
        for n, (one, two) in enumerate(pairs):
            one.sendall(bytes(1400))
            two.settimeout(0.3)
            if n == 0:
                self.assertRaises(TimeoutError, two.recv, 10)
            else:
                self.assertGreater(len(two.recv(1400)), 0)
        lab.heal(0)
        pairs[0][1].settimeout(10)
        self.assertGreater(len(pairs[0][1].recv(1400)), 0)
        for pair in pairs:
            for end in pair:
                end.close()

    def test_a_full_queue_drops_what_comes_last(self):
        # 20 ms of wire each: the queue takes ten, and the one that is being sent has left it.
        lab = self.lab([Link(0, 1, delay=0.001, rate=4e5, queue=10 * 1000)])
        with lab.socket(0) as one, lab.socket(1) as two:
            for i in range(50):
                one.sendto(i.to_bytes(4, "big") + bytes(1000 - 28 - 4), two.getsockname())
            got = [int.from_bytes(data[:4], "big") for _, data in receive(two, 0.3)]
        print(f"a queue of ten packets passed {len(got)} of 50")
        self.assertIn(len(got), range(9, 13))
        self.assertEqual(got[:9], list(range(9)))
        self.assertEqual(lab.counts()[0][0].full, 50 - len(got))

    def test_a_cut_link_swallows_until_it_is_healed(self):
        lab = self.lab([Link(0, 1, delay=0.05)])
        self.assertIsNotNone(trip(lab, 0, 1))
        with lab.socket(0) as one, lab.socket(1) as two:
            one.sendto(b"under way", two.getsockname())
            time.sleep(0.01)
            lab.cut(0)
            one.sendto(b"too late", two.getsockname())
            self.assertEqual(receive(two, 0.2), [])
        self.assertEqual(lab.counts()[0][0].cut, 2)
        lab.heal(0)
        self.assertIsNotNone(trip(lab, 0, 1))

    def test_a_chain_goes_through_and_a_mesh_goes_straight(self):
        figures = {"delay": 0.004}
        with Lab(PROGRAM, chain(3, **figures)) as lab:
            self.assertGreaterEqual(trip(lab, 0, 2), 0.016)
            self.assertEqual([there.packets for there, _ in lab.counts()], [1, 1])
            lab.cut(1)
            self.assertIsNone(trip(lab, 0, 2, 0.1))
            self.assertIsNotNone(trip(lab, 0, 1))
        with Lab(PROGRAM, mesh(3, **figures)) as lab:
            least = min(trip(lab, 0, 2) for _ in range(5))
            self.assertTrue(0.008 <= least < 0.016, least)
            self.assertEqual([there.packets for there, _ in lab.counts()], [0, 5, 0])

    def test_tcp_passes_with_and_without_super_packets(self):
        for offload in (True, False):
            data = os.urandom(4 << 20)
            with Lab(PROGRAM, [Link(0, 1, delay=0.001, offload=offload)]) as lab, \
                    lab.socket(1, socket.SOCK_STREAM) as door, lab.socket(0, socket.SOCK_STREAM) as one:
                door.listen()
                one.settimeout(20)
                one.connect(door.getsockname())
                sender = threading.Thread(target=one.sendall, args=(data,))
                sender.start()
                two, _ = door.accept()
                with two:
                    two.settimeout(20)
                    got = bytearray()
                    while len(got) < len(data):
                        got += two.recv(1 << 20)
                sender.join()
                self.assertEqual(bytes(got), data)
                self.assertGreater(lab.counts()[0][0].bytes, len(data))

    def test_nothing_stays_behind(self):
        lab = Lab(PROGRAM, [Link(0, 1)])
        inode = os.stat(lab.spaces[0]).st_ino
        lab.process.kill()
        lab.close()
        left = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                left += [pid] if os.stat(f"/proc/{pid}/ns/net").st_ino == inode else []
            except OSError:
                pass
        self.assertEqual(left, [])


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    skip_unless_played(PROGRAM)
    run_first()
    unittest.main(argv=sys.argv[:1], verbosity=2)
