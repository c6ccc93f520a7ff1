"""Sites of one machine joined by emulated long links (wan_lab.c), for tests and benchmarks. Root and /dev/net/tun are
needed: LabMissing says what is not there.

    with Lab(PROGRAM, chain(3, delay=0.005, rate=1e9)) as lab:
        lab.popen(0, ["longhaul", "train", "job.ini", "--host", "t1"])     # in site 0, which has lab.address(0)
        lab.cut(1); lab.heal(1)                                            # the second link
        lab.counts()[0][1].bytes                                           # of the first link, from its second site
"""
import ctypes
import os
import socket
import subprocess
import sys
from collections import namedtuple
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

CLONE_NEWNET = 0x40000000
CANNOT = 77
LIBC = ctypes.CDLL(None, use_errno=True)

Counts = namedtuple("Counts", "packets bytes lost full cut late")


class LabMissing(Exception):
    """This machine can't play sites; the text says why."""


@dataclass
class Link:
    """Between sites a and b: delay in seconds each way, rate in bit/s of the wire, loss 0..1 a packet, queue in bytes
    before each direction (None: one round trip at this rate, 64 KiB at least), late 0..1 a packet that others overtake.
    Super-packets (offload) carry more
    Gb/s but are lost as a whole, so a link that loses packets takes none unless told to."""
    a: int
    b: int
    delay: float = 0.005
    rate: float = 1e9
    loss: float = 0
    queue: float = None
    mtu: int = 1500
    offload: bool = None
    seed: int = 1
    late: float = 0

    def figures(self):
        window = 2 * self.delay * self.rate / 8
        queue = max(window, 65536) if self.queue is None else self.queue
        # The first super-packet must fit at all.
        if self.takes_super_packets() and queue < 131072:
            queue = 131072
        return self.delay * 1e9, self.rate, self.loss, queue, self.late

    def takes_super_packets(self):
        return self.loss == 0 and self.late == 0 and self.queue is None if self.offload is None else self.offload

    def word(self):
        return ",".join(["%d,%d" % (self.a, self.b), *("%.9g" % f for f in self.figures()),
                         "%d,%d,%d" % (self.mtu, self.takes_super_packets(), self.seed)])


def chain(sites, **figures):
    """Links between neighbours; the sites between forward."""
    return [Link(s, s + 1, seed=s + 1, **figures) for s in range(sites - 1)]


def mesh(sites, **figures):
    """A link between each two."""
    pairs = [(a, b) for a in range(sites) for b in range(a + 1, sites)]
    return [Link(a, b, seed=i + 1, **figures) for i, (a, b) in enumerate(pairs)]


def run_first():
    """What is measured beside other programs is the link, not them; the emulator has this priority, too."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)


def skip_unless_played(program):
    """Ends this program, as a test that is skipped, where no links can be played."""
    try:
        Lab(program, [Link(0, 1)]).close()
    except LabMissing as why:
        print("skipped:", why)
        sys.exit(CANNOT)


class Lab:
    def __init__(self, program, links):
        if os.geteuid() != 0:
            raise LabMissing("network namespaces and TUN devices need root")
        if not os.path.exists("/dev/net/tun"):
            raise LabMissing("there is no /dev/net/tun")
        self.links = list(links)
        self.sites = 1 + max(max(k.a, k.b) for k in self.links)
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.process = subprocess.Popen([program, str(self.sites), *(k.word() for k in self.links)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        if words[:1] != ["ready"]:
            reason = self.process.stderr.read().strip()
            code = self.process.wait()
            self.close()
            raise (LabMissing if code == CANNOT else RuntimeError)(reason)
        self.spaces = ["/proc/%d/fd/%s" % (self.process.pid, fd) for fd in words[1:]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """The links end and the sites with them, once the programs in them have ended."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
        self.process.wait()
        if self.home is not None:
            os.close(self.home)
        self.home = None

    def address(self, site):
        return "10.90.0.%d" % (site + 1)

    def prefix(self, site):
        """What stands before a command that is to run in a site."""
        return ("nsenter", "--net=" + self.spaces[site])

    @contextmanager
    def inside(self, site):
        """This thread's new sockets, and processes that it starts, are the site's."""
        with open(self.spaces[site], "rb") as space:
            self.enter(space.fileno())
        try:
            yield
        finally:
            self.enter(self.home)

    @staticmethod
    def enter(fd):
        if LIBC.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def popen(self, site, command, **more):
        with self.inside(site):
            return subprocess.Popen(command, **more)

    def socket(self, site, kind=socket.SOCK_DGRAM, port=0):
        """A socket of the site, bound to its address."""
        with self.inside(site):
            made = socket.socket(socket.AF_INET, kind)
        made.bind((self.address(site), port))
        return made

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def must(self, line):
        answer = self.ask(line)
        if answer != "done":
            raise ValueError(answer or "the emulator has ended")

    def cut(self, link):
        """What is under way is lost, and what comes until heal."""
        self.must("cut %d" % link)

    def single(self, link):
        """Cuts one TCP connection of the link: the first that sends data from now on."""
        self.must("single %d" % link)

    def heal(self, link):
        self.must("heal %d" % link)

    def set(self, link, **figures):
        """Other figures for what is sent from now on: delay, rate, loss, queue, late."""
        self.links[link] = replace(self.links[link], **figures)
        self.must("set %d " % link + " ".join("%.9g" % f for f in self.links[link].figures()))

    def counts(self):
        """For each link (from a to b, from b to a): packets and bytes let through, packets lost, dropped by a full
        queue, swallowed by a cut, and let through late; a super-packet counts as its segments where it passed, else as one."""
        words = [int(w) for w in self.ask("counts").split()]
        rows = [Counts(*words[i:i + 6]) for i in range(0, len(words), 6)]
        return list(zip(rows[::2], rows[1::2]))
