"""What tests of packages and places share: the source, the build, and how one that can't run here says why."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD, CMAKE = (os.path.abspath(p) for p in sys.argv[1:4])
LONGHAUL = os.path.join(BUILD, "bin", "longhaul")
DATA = os.path.join(SOURCE, "examples", "data")
TORTURE = os.environ.get("LONGHAUL_TORTURE", "") not in ("", "0")
MIRROR = os.environ.get("LONGHAUL_MIRROR", "http://deb.debian.org/debian")
READY = os.environ.get("LONGHAUL_DEBIAN", "")


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class PlacesCase(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lh-places-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def call(self, *words, code=0, **how):
        """A command's stdout; its exit code must be `code`."""
        how.setdefault("timeout", 240)
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, **how)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout


def bare_debian_or_skip():
    """Ends a test that can't have a bare Debian here, or that nobody asked for."""
    if not TORTURE and not READY:
        skip("part of make torture only")
    if os.geteuid() != 0:
        skip("chroot and mounts need root")
    if not READY and shutil.which("debootstrap") is None and not os.path.exists("/usr/sbin/debootstrap"):
        skip("there is no debootstrap (Debian: debootstrap)")
    with tempfile.TemporaryDirectory() as scratch:
        if not READY and subprocess.run(["/usr/lib/apt/apt-helper", "download-file", MIRROR + "/dists/bookworm/Release",
                                         os.path.join(scratch, "Release")], capture_output=True, timeout=60).returncode:
            skip(f"{MIRROR} is not in reach; LONGHAUL_MIRROR may name another")


def bare_debian(case, root):
    """Debian 12 and nothing else, in that folder."""
    if READY:
        case.call("cp", "-a", READY, root)
    else:
        case.call("debootstrap", "--variant=minbase", "bookworm", root, MIRROR, timeout=1200)
    shutil.copy("/etc/resolv.conf", os.path.join(root, "etc", "resolv.conf"))


def main():
    unittest.main(argv=sys.argv[:1] + sys.argv[4:], verbosity=2)
