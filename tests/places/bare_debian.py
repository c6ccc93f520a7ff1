"""The .debs on a bare Debian 12: installed with what they depend on, the demo's first pipeline run by a user without rights,
and taken away again: every file is then as it was, but for records of dpkg and apt.

Part of `make torture` only, as root, with debootstrap and a mirror (LONGHAUL_MIRROR) in reach. LONGHAUL_DEBIAN may name a
folder that `debootstrap --variant=minbase bookworm` has filled: it is copied and not changed."""
import hashlib
import os
import shutil

from places_case import BUILD, CMAKE, TORTURE, PlacesCase, bare_debian, bare_debian_or_skip, main

# What dpkg and apt write down of everything that they do.
RECORDS = ("var/log/", "var/lib/dpkg/status", "var/lib/dpkg/status-old", "var/lib/dpkg/lock", "var/lib/dpkg/triggers/",
           "var/cache/apt/", "var/cache/ldconfig/", "etc/ld.so.cache", "var/lib/dpkg/available", "proc/", "dev/", "sys/")


class BareDebian(PlacesCase):
    def setUp(self):
        super().setUp()
        self.root = os.path.join(self.folder, "debian")
        bare_debian(self, self.root)

    def inside(self, script, user="root", **how):
        """A shell script in there, in mounts of its own, which end with it."""
        mount = (f"mount -t proc proc {self.root}/proc && mount --bind /dev {self.root}/dev && "
                 f'exec chroot --userspec={user} {self.root} /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp '
                 'LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive sh -euc "$1"')
        return self.call("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", script, **how)

    def snapshot(self):
        found = {}
        for top, folders, files in os.walk(self.root):
            for name in folders + files:
                path = os.path.join(top, name)
                shown = os.path.relpath(path, self.root)
                if shown.startswith(RECORDS):
                    continue
                if os.path.islink(path):
                    found[shown] = os.readlink(path)
                elif os.path.isfile(path):
                    with open(path, "rb") as f:
                        found[shown] = hashlib.sha256(f.read()).hexdigest()
                else:
                    found[shown] = oct(os.stat(path).st_mode)
        return found

    def test_installed_used_and_gone(self):
        debs = os.path.join(self.root, "debs")
        self.call(os.path.join(os.path.dirname(CMAKE), "cpack"), "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", debs,
                  timeout=900)
        runtime, dev = sorted((n for n in os.listdir(debs) if n.endswith(".deb")), key=len)
        shutil.rmtree(os.path.join(debs, "_CPack_Packages"))
        self.inside("apt-get update -qq")
        # What it depends on is there before, so that what is compared is the packages' own.
        depends = self.call("dpkg-deb", "-f", os.path.join(debs, runtime), "Depends")
        names = " ".join(d.split()[0] for d in depends.split(","))
        self.inside(f"apt-get install -y -qq --no-install-recommends {names}", timeout=600)
        before = self.snapshot()
        self.inside(f"apt-get install -y -qq --no-install-recommends /debs/{runtime} /debs/{dev}", timeout=600)
        self.assertEqual(self.inside("dpkg --verify longhaul longhaul-dev"), "")
        self.assertIn("plugin ABI", self.inside("longhaul --version"))
        self.assertNotIn("not usable", self.inside("longhaul plugins"))
        steps = "" if TORTURE else " --set train.steps=20 --set train.evaluate_every=0"
        said = self.inside("mkdir /tmp/work && cd /tmp/work && cp -r /usr/share/doc/longhaul/examples . && "
                           f"longhaul run examples/shakespeare.ini{steps} 2>&1 && ls out/shakespeare out/shakespeare/hf && "
                           "longhaul verify out/shakespeare/checkpoints", user="nobody:nogroup", timeout=1200)
        for name in ("report.html", "eval.json", "generated.json", "model.safetensors"):
            self.assertIn(name, said)
        self.inside("rm -rf /tmp/work")
        self.inside("dpkg --purge longhaul-dev longhaul")
        after = self.snapshot()
        self.assertEqual({n for n in set(before) ^ set(after)}, set())
        self.assertEqual([n for n in before if before[n] != after[n]], [])


if __name__ == "__main__":
    bare_debian_or_skip()
    main()
