"""deploy/Containerfile, built by buildah on a base made by debootstrap, and a small job run in the image by its user.

Part of `make torture` only, as root: three to five minutes. Neither a registry nor a container engine is needed; what the
image is built of and runs on is what `podman build` would use, but for Debian's own slim base."""
import os
import re
import shutil

from places_case import DATA, SOURCE, PlacesCase, bare_debian, bare_debian_or_skip, main, read, skip

BASE = "localhost/longhaul-test-debian"
IMAGE = "localhost/longhaul-test"


class Container(PlacesCase):
    def setUp(self):
        super().setUp()
        storage = os.path.join(self.folder, "storage")
        self.tool = ("buildah", "--root", storage, "--runroot", os.path.join(self.folder, "run"), "--storage-driver", "vfs")

    def build(self, *words, **how):
        return self.call(*self.tool, *words, **how).strip()

    def test_image_is_built_and_trains(self):
        root = os.path.join(self.folder, "debian")
        bare_debian(self, root)
        base = self.build("from", "scratch")
        self.build("add", "-q", base, root, "/", timeout=600)
        self.build("commit", "-q", base, BASE, timeout=600)
        shutil.rmtree(root)
        self.build("bud", "--isolation", "chroot", "--build-arg", "BASE=" + BASE, "-t", IMAGE, "-f",
                   os.path.join(SOURCE, "deploy", "Containerfile"), SOURCE, timeout=1500)
        box = self.build("from", IMAGE)
        self.assertEqual(self.build("inspect", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.StopSignal}}", box),
                         "10001 SIGTERM")
        work = os.path.join(self.build("mount", box), "job")
        shutil.copytree(DATA, os.path.join(work, "data"))
        # The manifest's job, alone and short.
        manifest = read(os.path.join(SOURCE, "deploy", "kubernetes.yaml"))
        job = re.search(r"  job\.ini: \|\n(.*?)\n---", manifest, re.S)[1].split("    [launch]")[0]
        with open(os.path.join(work, "job.ini"), "w") as f:
            f.write(re.sub(r"(?m)^    ", "", job).replace("steps       = 1000", "steps       = 20"))
        self.call("chown", "-R", "10001", work)
        inside = ("run", "--isolation", "chroot", box, "--", "/usr/bin/longhaul")
        self.assertIn("plugin ABI", self.build(*inside, "--version"))
        self.build(*inside, "run", "job.ini", timeout=600)
        self.assertEqual(sorted(os.listdir(os.path.join(work, "out", "checkpoints")))[-1], "step-000000000020")
        self.assertTrue(os.path.exists(os.path.join(work, "out", "hf", "model.safetensors")))
        self.assertEqual(os.stat(os.path.join(work, "out", "train.log")).st_uid, 10001)


if __name__ == "__main__":
    bare_debian_or_skip()
    if shutil.which("buildah") is None:
        skip("there is no buildah (Debian: buildah)")
    main()
