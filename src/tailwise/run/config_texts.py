"""Long descriptions of keys of the section run and of environments; `config.py` has the keys."""

SHARDS = (
    "groups of environments that several processes under torchrun share, part of the result: a run is the same bit for "
    "bit on any number of processes that divides it; docs/scaling.md"
)
PROCESSES = (
    "processes that step the environments of a training, or of a shard; no part of the result, and slower where a step "
    "takes less than some 10 microseconds; docs/environments.md"
)
THREADS = (
    "threads of the learner, part of the result: runs are equal bit for bit only with the same number; more than 2 "
    "seldom help small networks"
)
DEVICE = (
    "where epochs are computed: cpu, cuda, or auto for the GPU that torch finds; a GPU trains with plain torch, and "
    "the fused kernels are for the CPU; docs/learner.md"
)
