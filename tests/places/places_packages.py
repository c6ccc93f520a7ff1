"""`cmake --install`, its way back, and links of the pages it has put there; the .debs that cpack makes: what is in them, what
they depend on."""
import os
import re
import shutil

from places_case import BUILD, CMAKE, LONGHAUL, PlacesCase, main, read

CPACK = os.path.join(os.path.dirname(CMAKE), "cpack")


def tree(folder):
    """Every file and folder below it."""
    return {os.path.relpath(os.path.join(top, name), folder) for top, folders, files in os.walk(folder)
            for name in folders + files}


class Packages(PlacesCase):
    def test_uninstall_leaves_what_was_there(self):
        prefix = os.path.join(self.folder, "longhaul at home (c++)")
        for name in ("bin/other", "share/man/man1/other.1", "lib/longhaul/parts/theirs.so"):
            os.makedirs(os.path.dirname(os.path.join(prefix, name)), exist_ok=True)
            open(os.path.join(prefix, name), "w").close()
        others = tree(prefix)
        self.call(CMAKE, "--install", BUILD, "--prefix", prefix)
        self.call(os.path.join(prefix, "bin", "longhaul"), "help", "train")
        unit = read(os.path.join(prefix, "lib", "systemd", "system", "longhaul@.service"))
        self.assertIn(f'\nExecStart="{prefix}/bin/longhaul" run /etc/longhaul/%i.ini --resume\n', unit)
        self.assertGreater(len(tree(prefix) - others), 100)
        manifest = os.path.join(self.folder, "manifest.txt")
        shutil.copy(os.path.join(BUILD, "install_manifest.txt"), manifest)
        uninstall = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "cmake",
                                 "uninstall.cmake")
        self.call(CMAKE, f"-DMANIFEST={manifest}", "-P", uninstall)
        left = tree(prefix) - others
        # Folders that are no longhaul's own, as share/man/man5, stay; nothing else does.
        self.assertEqual([name for name in left if not os.path.isdir(os.path.join(prefix, name)) or "longhaul" in name], [])
        self.assertEqual(others - tree(prefix), set())
        self.call(CMAKE, f"-DMANIFEST={manifest}", "-P", uninstall, code=1)

    def test_links_of_installed_pages_lead_to_what_is_installed(self):
        prefix = os.path.join(self.folder, "installed")
        self.call(CMAKE, "--install", BUILD, "--prefix", prefix)
        count, dead = 0, []
        for top, _, files in os.walk(prefix):
            for page in (os.path.join(top, name) for name in files if name.endswith(".md")):
                for target in re.findall(r"\]\(([^()#]+)(?:#[^()]*)?\)", read(page)):
                    if target.startswith(("http:", "https:", "mailto:")):
                        continue
                    count += 1
                    path = os.path.normpath(os.path.join(top, target))
                    if not path.startswith(prefix + os.sep) or not os.path.exists(path):
                        dead.append(f"{os.path.relpath(page, prefix)} links {target}")
        self.assertEqual(dead, [])
        self.assertGreater(count, 100)
        pages = os.path.join(prefix, "share", "doc", "longhaul")
        # The SDK lies elsewhere than in the source; the core is the source's alone.
        self.assertIn("[decoder.h](../../../../include/longhaul/decoder.h)", read(os.path.join(pages, "docs", "models.md")))
        self.assertIn("`core/base/README.md`", read(os.path.join(pages, "README.md")))

    def test_debs(self):
        if shutil.which("dpkg-deb") is None or shutil.which("dpkg-shlibdeps") is None:
            self.skipTest("there is no dpkg-deb or dpkg-shlibdeps (Debian: dpkg-dev)")
        self.call(CPACK, "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", self.folder, timeout=900)
        debs = sorted((n for n in os.listdir(self.folder) if n.endswith(".deb")), key=len)
        self.assertEqual([n.split("_")[0] for n in debs], ["longhaul", "longhaul-dev"])
        runtime, dev = (os.path.join(self.folder, n) for n in debs)
        version = self.call(LONGHAUL, "--version").split()[1]
        for deb in (runtime, dev):
            self.assertEqual(self.call("dpkg-deb", "-f", deb, "Version").strip(), version)
        depends = self.call("dpkg-deb", "-f", runtime, "Depends")
        # What the program and the tcp plugin link to, by the names of Debian's packages.
        for library in ("libc6", "libssl3", "libzstd1", "zlib1g", "libpcre2-8-0"):
            self.assertRegex(depends, rf"\b{library}\b")
        self.assertIn(f"longhaul (= {version})", self.call("dpkg-deb", "-f", dev, "Depends"))
        files = {}
        for deb in (runtime, dev):
            rows = [line.split(None, 5) for line in self.call("dpkg-deb", "-c", deb).splitlines()]
            files[deb] = {row[5]: row[0] for row in rows}
            for name, mode in files[deb].items():
                self.assertNotRegex(mode, r"^.....w|^........w", name)  # the loader refuses what others can write
        for name in ("usr/bin/longhaul", "usr/bin/longhaul-check", "usr/lib/longhaul/models/llama.so",
                     "usr/lib/longhaul/transports/defaults.ini", "usr/share/longhaul/recipes/small.ini", "usr/share/man/man1/longhaul.1",
                     "usr/share/man/man5/longhaul.ini.5", "usr/share/bash-completion/completions/longhaul",
                     "usr/lib/systemd/system/longhaul@.service", "usr/share/doc/longhaul/copyright"):
            self.assertIn("./" + name, files[runtime])
        for name in ("usr/include/longhaul/plugin.h", "usr/share/longhaul/sdk/template/model/my_model.c",
                     "usr/share/doc/longhaul/docs/operations.md", "usr/share/doc/longhaul/examples/shakespeare.ini",
                     "usr/share/doc/longhaul/deploy/kubernetes.yaml", "usr/share/cmake/longhaul-sdk/plugin.version"):
            self.assertIn("./" + name, files[dev])
        # Neither has a file of the other, nor a plugin that only tests use.
        both = {n for n in files[runtime] if not n.endswith("/")} & set(files[dev])
        self.assertEqual(both, set())
        self.assertEqual([n for n in files[runtime] if re.search(r"/(fake|acme_\w+|wrong\w*)\.so$", n)], [])


if __name__ == "__main__":
    main()
