"""The same command twice gives bit-identical results, and so do both engines where they add in the same order."""
import functools
import os
import tempfile

from images import few_clothes
from program import harness
from tap import cases, expect, expect_equal, long_cases, main, test

REAL = ["--data", "CLOTHES", "--batch", "8"]
FEW = ["--data", "CLOTHES", "--batch", "4"]
TWO = ["--data", "CLOTHES", "--batch", "2", "--eval-every", "-1"]


def bits_anew(*words, limit=120):
    """{engine: (hash of the parameters, losses)}"""
    words = [few_clothes() if word == "CLOTHES" else word for word in words]
    result = harness(*words, "--json", "-", "--quiet", limit=limit)
    expect_equal(result.code, 0, "exit code", result)
    return {name: (job["parameter_hash"], job["losses"]) for name, job in result.jobs().items()}


bits = functools.lru_cache(maxsize=None)(bits_anew)  # the same command gives the same results: below, and by the first test


@cases([
    ("toy, 5 ranks", ["--model", "toy", "--gpus", "5", "--steps", "30"]),
    ("wine_mlp, adam, 3 ranks", ["--model", "wine_mlp", "--data", "wine", "--gpus", "3", "--epochs", "10", "--optimizer", "adam"]),
    ("lenet, 2 threads", ["--model", "lenet", *REAL, "--threads", "2", "--steps", "8", "--augment", "crop,flip"]),
    ("lenet, 4 ranks, Nesterov, clipping", ["--model", "lenet", *REAL, "--threads", "1", "--gpus", "4", "--steps", "8",
                                            "--momentum", "0.9", "--nesterov", "--clip-norm", "0.5"]),
    ("reference", ["--model", "wine_mlp", "--data", "wine", "--device", "reference", "--steps", "20"]),
    ("gpt2", ["--model", "gpt2", "--layers", "1", "--hidden", "32", "--heads", "2", "--vocabulary", "100", "--positions", "8",
              "--sequence", "8", "--batch", "2", "--steps", "4"]),
    ("other policies", ["--model", "lenet", *REAL, "--gpus", "3", "--steps", "8", "--policy", "ring=apex,ps=sync", "--servers", "2"]),
])
@long_cases([
    ("resnet18, 2 threads", ["--mode", "ring", "--model", "resnet18", *TWO, "--threads", "2", "--warmup", "1", "--steps", "2"]),
    ("resnet18, SyncBatchNorm", ["--mode", "ps", "--policy", "sync", "--model", "resnet18", *TWO, "--gpus", "2", "--threads", "1", "--warmup", "1",
                                 "--steps", "2", "--sync-batchnorm"]),
])
def the_same_command_twice_gives_bit_identical_results(words):
    first, second = bits_anew(*words), bits_anew(*words)
    for engine in first:
        expect_equal(second[engine][0], first[engine][0], f"{engine}: hash of the second run")
        expect_equal(second[engine][1], first[engine][1], f"{engine}: losses of the second run")


@test
def the_ring_is_a_ring_unless_another_algorithm_is_chosen():
    base = ["--model", "lenet", *FEW, "--mode", "ring", "--gpus", "3", "--steps", "4", "--threads", "1"]
    default, ring, two_shot = (bits(*base, *words)["ring"] for words in
                               ([], ["--algorithm", "ring"], ["--algorithm", "two-shot"]))
    expect_equal(default, ring, "the default, and ring")
    expect(ring != two_shot, "ring and two-shot add in the same order")


@cases([("another seed", ["--seed", "2"]), ("another batch", ["--batch", "9"]), ("another rate", ["--lr", "0.02"])])
def another_experiment_gives_other_results(words):
    base = ["--model", "lenet", *REAL, "--mode", "ring", "--steps", "3"]
    expect(bits(*base)["ring"] != bits(*base, *words)["ring"], "the hashes are the same")


@cases([
    ("inline and on a thread", ["--mode", "ps", "--progress", "inline"], ["--mode", "ps", "--progress", "thread"], "ps"),
    ("shared memory and messages", ["--mode", "ps", "--payload", "shm"], ["--mode", "ps", "--payload", "zmq"], "ps"),
    ("ipc and tcp", ["--mode", "ps", "--transport", "ipc"], ["--mode", "ps", "--transport", "tcp"], "ps"),
    ("one server and three", ["--mode", "ps", "--policy", "sync"], ["--mode", "ps", "--policy", "sync", "--servers", "3"], "ps"),
    ("servers in ranks and in processes of their own", ["--mode", "ps", "--policy", "sync"],
     ["--mode", "ps", "--policy", "sync", "--servers", "2", "--server-placement", "own"], "ps"),
    ("sync and bounded staleness without any", ["--mode", "ps", "--policy", "sync"],
     ["--mode", "ps", "--policy", "ssp", "--staleness", "0"], "ps"),
    ("small buckets and large", ["--mode", "ring", "--algorithm", "two-shot", "--bucket-cap-mb", "0.01"],
     ["--mode", "ring", "--algorithm", "two-shot", "--bucket-cap-mb", "100"], "ring"),
])
def transport_and_placement_do_not_change_the_results(one, other, engine):
    base = ["--model", "lenet", *REAL, "--gpus", "3", "--steps", "10", "--threads", "1"]
    expect_equal(bits(*base, *one)[engine], bits(*base, *other)[engine], engine)


@test
def thousands_of_keys_give_the_results_of_one():
    """Each flush has more replies than a link holds, so one rank may request the next flush before the last replies of this one."""
    words = ["--mode", "ps", "--model", "lenet", "--batch", "1", "--gpus", "2", "--steps", "1", "--warmup", "0", "--threads", "1", "--policy"]
    expect_equal(bits(*words, "ssp:partition-bytes=40"), bits(*words, "ssp"), "6,000 keys, and one")


@cases([(engine, engine) for engine in ("none", "ps", "ring")])
def other_jobs_in_the_run_do_not_change_the_results(engine):
    words = ["--model", "lenet", *REAL, "--threads", "1", "--warmup", "5"]
    together = bits(*words, "--gpus", "3", "--steps", "10")
    ranks = [] if engine == "none" else ["--gpus", "3"]
    # 10 steps are 5 turns. Each turn has one more step, which trains but is not measured.
    alone = bits(*words, *ranks, "--steps", "15", "--mode", engine)
    expect_equal(together[engine][0], alone[engine][0], f"{engine} side by side, and alone")


@cases([
    ("resnet18 with silu and adamw", ["--model", "resnet18", "--activation", "silu", *TWO, "--steps", "3", "--warmup", "0", "--optimizer", "adamw"]),
])
@long_cases([("resnet18 on real data, 12 steps", ["--model", "resnet18", *FEW, "--steps", "12", "--warmup", "0", "--momentum", "0.9"])])
def two_ranks_end_with_bit_identical_parameters_under_both_engines(words):
    ps, ring = (bits(*words, "--gpus", "2", "--threads", "1", "--mode", mode, "--policy", f"{mode}={policy}", limit=300)[mode]
                for mode, policy in (("ps", "sync"), ("ring", "ddp")))  # One engine runs alone, without the steps of the baselines.
    expect_equal(ring, ps, "ring, and ps")
    expect(all(loss == loss for loss in ps[1]), "losses are numbers", ps[1])


@cases([("device 0", []), ("replicas", ["--dp-loss", "replica"]), ("messages", ["--payload", "zmq"]), ("sync", ["--policy", "sync"])])
def accumulated_micro_batches_give_the_step_of_one_large_batch(words):
    base = ["--mode", "ps", "--model", "wine_mlp", "--data", "wine", "--gpus", "2", "--sampler", "global", "--steps", "1",
            "--warmup", "0", *words]
    losses = [bits(*base, "--batch", batch, "--accumulate", count)["ps"][1][0] for batch, count in ((8, 3), (24, 1))]
    expect(abs(losses[0] - losses[1]) < 1e-5, f"losses {losses}")


def two_shot(*words):
    """The hashes of ps and of the ring engine with two-shot, which adds in the same order and divides at the same
    place."""
    ends = bits(*words, "--threads", "1", "--divide", "after", "--algorithm", "two-shot", "--steps", "45", "--warmup", "5")
    return ends["ps"][0], ends["ring"][0]


@cases([(f"{ranks} ranks, {servers} servers", ranks, servers) for ranks in (3, 2, 4, 5) for servers in sorted({1, 2, ranks})], at_more=3)
def sync_with_any_number_of_servers_ends_bit_identical_to_the_two_shot_ring(ranks, servers):
    ps, ring = two_shot("--model", "wine_mlp", "--data", "wine", "--batch", "16", "--optimizer", "adam", "--gpus", ranks, "--policy",
                      "ps=sync", "--servers", servers)
    expect_equal(ps, ring, "after 50 steps")


@cases([("3 ranks", 3)])
@long_cases([("5 ranks", 5)])
def sync_and_the_two_shot_ring_are_bit_identical_on_images(ranks):
    ps, ring = two_shot("--model", "lenet", *REAL, "--gpus", ranks, "--momentum", "0.9", "--policy", "ps=sync", "--servers", 2)
    expect_equal(ps, ring, "after 50 steps")


LENET = ["--mode", "ring", "--model", "lenet", *REAL, "--steps", "10", "--threads", "1", "--optimizer", "adam"]


@cases([(f"{policy}, {what}", policy, words) for policy in ("zero1", "zero2", "zero3", "zero3:reshard=no", "fsdp") for what, words in (
    ("2 ranks", ["--gpus", "2"]),
    ("3 ranks by two-shot", ["--gpus", "3", "--algorithm", "two-shot"]),
    ("reference", ["--gpus", "3", "--algorithm", "two-shot", "--device", "reference", "--steps", "3"]),
    ("inline", ["--gpus", "2", "--progress", "inline"]))], at_more=6)
def state_that_is_cut_among_ranks_gives_the_results_of_ddp(policy, words):
    expect_equal(bits(*LENET, *words, "--policy", policy), bits(*LENET, *words, "--policy", "ddp"), f"{policy}, and ddp")


@cases([("float32", []), ("mixed precision", ["--mixed-precision"])])
def accumulation_under_zero1_is_that_of_ddp_and_under_zero3_and_fsdp_that_of_zero2(words):
    ddp, zero1, zero2, zero3, fsdp = (bits(*LENET, "--gpus", "2", "--accumulate", "3", "--policy", policy, *words)["ring"]
                                      for policy in ("ddp", "zero1", "zero2", "zero3", "fsdp"))
    expect_equal(zero1, ddp, "zero1, and ddp")
    expect_equal(zero3, zero2, "zero3, and zero2")
    expect_equal(fsdp, zero2, "fsdp, and zero2")
    near = 1e-2 if words else 1e-4
    expect(all(abs(a - b) < near for a, b in zip(zero2[1], ddp[1])), f"losses {zero2[1]} and {ddp[1]}")


FILES = tempfile.TemporaryDirectory(prefix="same-bits-")
SAVING = ["--mode", "ring", "--model", "lenet", *REAL, "--steps", "4", "--threads", "1", "--optimizer", "adam", "--algorithm", "two-shot",
          "--eval-every", "-1"]


def saved(policy, ranks):
    """The path of a checkpoint, its bytes and the results of the run that wrote it."""
    path = os.path.join(FILES.name, f"{policy.replace(':', '-')}-{ranks}.safetensors")
    end = bits(*SAVING, "--gpus", ranks, "--policy", policy, "--save", path)["ring"]
    with open(path, "rb") as file:
        return path, file.read(), end


@cases([(f"{first} on {before} ranks, then {then} on {after}", first, before, then, after) for first, before, then, after in (
    ("ddp", 2, "zero3", 3), ("zero1", 2, "zero2", 3), ("zero2", 3, "zero3", 2), ("zero3", 3, "ddp", 1), ("zero3", 2, "zero3", 3),
    ("zero3", 2, "fsdp", 3), ("fsdp", 3, "zero1", 2), ("fsdp", 2, "fsdp", 1), ("zero3:group=1", 3, "fsdp:group=1", 2))], at_more=5)
def a_checkpoint_of_any_policy_resumes_under_any_other_on_any_number_of_ranks(first, before, then, after):
    path, ours, end = saved(first, before)
    path_of_ddp, theirs, end_of_ddp = saved("ddp", before)
    expect_equal(end_of_ddp, end, "saved by ddp, and here")
    expect(ours == theirs, "the file is not the one that ddp writes")
    resumed = [bits(*SAVING, "--gpus", after, "--policy", policy, "--load", file)["ring"] for policy, file in ((then, path), ("ddp", path_of_ddp))]
    expect_equal(resumed[0], resumed[1], f"resumed under {then}, and under ddp")


@test
def groups_of_ranks_write_one_checkpoint_whatever_they_cut():
    words = [*LENET, "--steps", "4", "--eval-every", "-1", "--gpus", "4", "--policy"]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for policy in ("zero1:group=2", "zero3:group=2", "fsdp:group=2"):
            path = os.path.join(folder, policy.replace(":", "-") + ".safetensors")
            bits(*words, policy, "--algorithm", "two-shot", "--save", path)
            with open(path, "rb") as file:
                files.append(file.read())
    expect(files[0] == files[1] == files[2], "the files differ")


@cases([(f"{policy} on {device}", policy, device) for device, policies in (
    ("cpu", ("zero1", "zero2", "zero3", "fsdp")), ("reference", ("zero1", "zero3"))) for policy in policies], at_more=4)
def with_mixed_precision_state_that_is_cut_gives_the_results_of_ddp_with_it(policy, device):
    words = [*LENET, "--gpus", "2", "--mixed-precision", "--device", device, "--steps", "4", "--clip-norm", "1e6", "--policy"]
    expect_equal(bits(*words, policy), bits(*words, "ddp"), f"{policy}, and ddp")
    mixed, plain = (bits(*[w for w in words if w not in without], "ddp")["ring"] for without in ((), ("--mixed-precision",)))
    expect(mixed[0] != plain[0], "bfloat16 rounds nothing")
    expect(all(abs(a - b) < 0.01 * abs(b) for a, b in zip(mixed[1], plain[1])), f"losses {mixed[1]} and {plain[1]}")


@cases([(f"{ranks} ranks", ranks) for ranks in (2, 3)])
def a_server_on_every_rank_gives_the_numbers_of_zero1(ranks):
    ps, ring = two_shot("--model", "wine_mlp", "--data", "wine", "--batch", "16", "--optimizer", "adam", "--gpus", ranks,
                        "--policy", "ps=sync,ring=zero1", "--servers", ranks)
    expect_equal(ps, ring, "after 50 steps")


main()
