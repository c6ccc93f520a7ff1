"""Ranks of the real cuda and nvlink plugins over the stand-ins of NVIDIA's libraries, as small as they can be: what the
sanitizers see of a rank's threads, of the host's and of NCCL's exchanges. cuda_test and cuda_ranks_test, which take
minutes under the thread sanitizer, have the bits."""
from cuda_case import LIBRARIES, TWO, CudaCase
from pipeline_case import main

SMALL = ["model.hidden=16", "model.heads=1", "model.kv_heads=1", "model.blocks=1", "model.ffn=16", "train.sequence=16",
         "train.batch=4", "train.micro_batch=1", "train.steps=2", "checkpoint.every=1"]
NCCL = ["transport.node.collectives=nvlink", "transport.node.libraries=" + LIBRARIES]


class CudaThreads(CudaCase):
    def test_two_ranks_exchange_by_the_host_and_by_nccl(self):
        job = self.prepared()
        self.train(job, "one", *SMALL, fake="seed=1")
        self.train(job, "host", *SMALL, "optimizer.plugin=zero3", *TWO, fake="gpus=2 seed=2")
        self.assert_curves_near("host", "one", 1e-4)
        self.train(job, "nccl", *SMALL, "optimizer.plugin=zero2", *TWO, *NCCL, fake="gpus=2 seed=3")
        self.assert_curves_near("nccl", "one", 1e-4)


if __name__ == "__main__":
    main()
