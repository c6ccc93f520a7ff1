"""The examples of several sites run on one machine as they are, but for their folder and a hundred steps; and the bits of
three sites do not depend on the way between them."""
import os

from pipeline_case import SOURCE, PipelineCase, checkpoint_digest, log_lines, main, read_json_lines, set_flags

STEPS = 2


class Examples(PipelineCase):
    def job(self, name):
        return os.path.join(SOURCE, "examples", name + ".ini")

    def sets(self, folder, *more):
        return set_flags("pipeline.folder=" + self.path(folder), "train.steps=%d" % STEPS, *more)

    def test_they_run(self):
        for name, ranks, sites in (("two-sites", 4, 2), ("three-sites", 3, 3)):
            self.run_longhaul("run", self.job(name), *self.sets(name))
            said = log_lines(self.path(name, "train.log"))
            self.assertTrue(any("%d ranks, %d sites" % (ranks, sites) in line for line in said), said)
            rows = [r for r in read_json_lines(self.path(name, "metrics.jsonl")) if "seconds" in r]
            self.assertEqual(len(rows), STEPS)
            self.assertTrue(all("wan" in r["exposed"] for r in rows), rows)
            # A step's row has rank 0's part, the next one's the least of all ranks.
            self.assertTrue(all(behind["least_exposed_before"] <= sum(row["exposed"].values()) + 1e-9
                                for row, behind in zip(rows, rows[1:])), rows)
            self.assertTrue(any(behind["least_exposed_before"] > 0 for behind in rows[1:]), rows)

    def test_no_way_between_three_sites_changes_a_bit(self):
        for border in ("bf16", "int8"):
            found = {}
            for way in ("mesh", "exchange", "chain", "ring"):
                folder = border + way
                os.mkdir(self.path(folder))
                for end in ("bin", "idx"):
                    self.link_corpus(folder, "corpus." + end)
                self.run_longhaul("train", self.job("three-sites"), *self.sets(
                    folder, "optimizer.plugin=zero0", "comm.border=" + border, "comm.between_sites=" + way,
                    "checkpoint.every=%d" % STEPS))
                found[way] = checkpoint_digest(self.step_folder(STEPS, folder))
            self.assertEqual(len(set(digest for digest, _ in found.values())), 1, {w: d for w, (d, _) in found.items()})

    def link_corpus(self, folder, file):
        """Prepared once."""
        if not os.path.exists(self.path("prepared", file)):
            self.run_longhaul("prepare", self.job("three-sites"), *self.sets("prepared"))
        os.link(self.path("prepared", file), self.path(folder, file))


if __name__ == "__main__":
    main()
