"""What the largest virtual runs may cost: less than 20 s of one idle core. The test allows three times as much, of
processor time, so that other programs on the machine do not matter."""
import resource

from program import harness
from tap import cases, expect, expect_equal, long_cases, main

MODEL = ("--model", "resnet50", "--batch", "32", "--warmup", "0", "--quiet", "--json", "-")
SHARDS = ("--mode", "ps", "--policy", "sync", "--gpus", "64", "--servers", "64")


@long_cases([("256 workers with 256 servers", 256, 256, 20), ("1,024 workers with one server", 1024, 1, 8)])
def two_steps_of_many_workers_take_seconds_to_simulate(workers, servers, promised):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    job = harness("run", "--device", "sim:v100-pcie-10gbe", "--mode", "ps", "--policy", "sync", "--gpus", workers, "--servers", servers, *MODEL,
                  "--steps", 2, "--stall-timeout", "36000s", limit=300).json()["jobs"][0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    expect_equal(job["world_size"], workers, "ranks")
    expect(used < 3 * promised, f"simulating two steps took {used:.1f} s of processor time, promised are {promised} s")


@cases([("64 workers with 64 shards on hosts of eight GPUs", "dgx1-v100-4xib100", 64, SHARDS, 4)])
@long_cases([("64 workers with 64 shards on hosts of one GPU", "v100-pcie-10gbe", 64, SHARDS, 2),
             ("1,024 ranks of a ring", "dgx1-v100-4xib100", 1024, ("--mode", "ring", "--gpus", "1024"), 10)])
def steps_of_resnet50_take_seconds_to_simulate(profile, ranks, words, steps):
    """Of ten steps; those that take longest run fewer, in as much less time. Ten steps of the ring show that later ones take as long."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    job = harness("run", "--device", "sim:" + profile, *words, *MODEL, "--steps", steps).json()["jobs"][0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    expect_equal(job["world_size"], ranks, "ranks")
    limit = 60 * steps / 10
    expect(used < limit, f"simulating {steps} steps took {used:.1f} s of processor time, expected less than {limit} s")


if __name__ == "__main__":
    main()
