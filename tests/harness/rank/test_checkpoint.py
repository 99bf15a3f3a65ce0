"""--save, --load and --save-every from the command line: a resumed run ends with the bits of one that was never
interrupted, whatever the policy, in one file or several, and what cannot be saved or loaded ends with one line."""
import json
import os
import tempfile

from program import harness
from tap import cases, expect, expect_equal, long_cases, main, more_test, test

FOLDER = tempfile.TemporaryDirectory(prefix="run-")
WINE = ["--model", "wine_mlp", "--data", "wine", "--batch", "16", "--warmup", "0", "--threads", "1", "--quiet"]
ONE = [*WINE, "--mode", "none"]
ADAM = ["--optimizer", "adam", "--lr-schedule", "cosine", "--lr-steps", "20"]


def path(name):
    return os.path.join(FOLDER.name, name)


def content(name):
    with open(path(name), "rb") as file:
        return file.read()


def run(*words):
    result = harness("run", *words)
    expect_equal(result.code, 0, "exit code", result)
    return result


@cases([
    ("one rank", [*ONE, *ADAM]),
    ("one rank, momentum", [*ONE, "--lr", "0.01", "--momentum", "0.9", "--dampening", "0.2"]),
    ("ring", [*WINE, "--mode", "ring", "--gpus", "2", *ADAM]),
    ("ring of 3 that adds in rank order", [*WINE, "--mode", "ring", "--gpus", "3", "--algorithm", "two-shot", "--bucket-cap-mb", "0.001", *ADAM]),
    ("parameter server", [*WINE, "--mode", "ps", "--policy", "ps=sync", "--servers", "2", "--gpus", "2", *ADAM]),
    ("DataParallel", [*WINE, "--mode", "ps", "--policy", "ps=dp", "--gpus", "2", *ADAM]),
])
def a_resumed_run_is_bit_identical_to_an_uninterrupted_one(words):
    run(*words, "--steps", "17", "--save", path("whole"))
    run(*words, "--steps", "7", "--save", path("part"))
    run(*words, "--steps", "10", "--load", path("part"), "--save", path("resumed"))
    expect(content("whole") == content("resumed"), "the checkpoints differ")


# Two ranks, two-shot, divided after the sum: all end bit-identical, so a checkpoint of one resumes in another if the
# files are the same and all go on in the same way from one of them.
RING, PS = [*WINE, "--mode", "ring", "--algorithm", "two-shot", "--divide", "after"], [*WINE, "--mode", "ps", "--divide", "after"]
ALIKE = [(policy, [*RING, "--policy", f"ring={policy}", "--gpus", "2"])
         for policy in ("ddp", "apex", "naive", "zero1", "zero2", "zero3", "zero3:reshard=no", "fsdp", "zero1:group=1", "fsdp:group=1")]
ALIKE += [("sync", [*PS, "--policy", "ps=sync", "--gpus", "2"]),
          ("sync with a server per rank", [*PS, "--policy", "ps=sync", "--servers", "2", "--gpus", "2"]),
          ("sync where workers update", [*PS, "--policy", "ps=sync", "--server-optimizer", "off", "--gpus", "2"])]
# These add in another order, or round.
OTHERS = [("dp", [*PS[:-2], "--policy", "ps=dp", "--gpus", "3"]), ("async", [*PS, "--policy", "ps=async", "--gpus", "2"]),
          ("ssp", [*PS, "--policy", "ps=ssp", "--gpus", "3"]), ("one rank", ONE),
          ("zero2 on 3 ranks", [*RING, "--policy", "ring=zero2", "--gpus", "3"]),
          ("groups of zero3", [*RING, "--policy", "ring=zero3:group=2", "--gpus", "4"]),
          ("mixed ddp", [*RING, "--policy", "ring=ddp", "--gpus", "2", "--mixed-precision"]),
          ("mixed zero3", [*RING, "--policy", "ring=zero3", "--gpus", "3", "--mixed-precision"]),
          ("mixed fsdp", [*RING, "--policy", "ring=fsdp", "--gpus", "2", "--mixed-precision"])]


def tensors(name):
    """{name: (type, shape, bytes)} of a file."""
    whole = content(name)
    length = int.from_bytes(whole[:8], "little")
    header = {key: value for key, value in json.loads(whole[8:8 + length]).items() if key != "__metadata__"}
    return {key: (t["dtype"], t["shape"], whole[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]])
            for key, t in header.items()}


def end_of(words, source):
    """Hash and losses of 3 steps on, from a checkpoint."""
    job, = run(*words, *ADAM, "--steps", "3", "--eval-every", "-1", "--load", path(source), "--json", "-").json()["jobs"]
    return job["parameter_hash"], job["losses"]


def of_ddp():
    """What ddp saves, and how it goes on."""
    if not of_ddp.end:
        run(*ALIKE[0][1], *ADAM, "--steps", "4", "--save", path("ddp"))
        of_ddp.end = end_of(ALIKE[0][1], "ddp")
    return tensors("ddp"), of_ddp.end


of_ddp.end = None


@cases(ALIKE)
def a_checkpoint_of_any_policy_is_that_of_any_other_and_all_go_on_from_it_alike(words):
    saved, end = of_ddp()
    run(*words, *ADAM, "--steps", "4", "--save", path("one"))
    expect(tensors("one") == saved, "the tensors are not those of ddp")
    expect_equal(end_of(words, "ddp"), end, "from ddp's checkpoint")


@cases(OTHERS)
def what_any_policy_saves_goes_on_under_all_others_alike(words):
    """And it goes on from what the others save."""
    run(*words, *ADAM, "--steps", "4", "--save", path("other"))
    ends = [end_of(alike, "other") for _, alike in (ALIKE[0], ALIKE[4], ALIKE[5], ALIKE[-2])]
    expect(all(end == ends[0] for end in ends), f"ends of ddp, zero2, zero3 and sync: {ends}")
    of_ddp()
    _, losses = end_of(words, "ddp")
    expect(len(losses) == 3 and all(loss < 2 for loss in losses), f"losses from ddp's checkpoint: {losses}")


# A pipeline trains as the ranks with whole models do that have as many replicas.
def model(name, *more):
    return ["--model", name, *more, "--batch", "2", "--accumulate", "2", "--warmup", "0", "--threads", "1", "--quiet", "--eval-every", "-1"]


def stages(count, replicas=1):
    return ["--mode", "ring", "--gpus", str(count * replicas), "--stages", str(count)]


def devices(count, ranks=1):
    return ["--mode", "ring", "--gpus", str(ranks), "--stages", str(count), "--stages-on", "devices"]


LENET, NORM = model("lenet"), model("resnet18", "--image", "32", "--classes", "10")
TIED = model("gpt", "--layers", "4", "--hidden", "64", "--heads", "4", "--sequence", "16", "--vocabulary", "100")
TWO_SHOT = ["--mode", "ring", "--gpus", "2", "--algorithm", "two-shot", "--divide", "after"]


@cases([("lenet in 2", LENET, 2, 1, ["--mode", "none"]), ("lenet in 3", LENET, 3, 1, ["--mode", "none"]),
        ("lenet in 2, 2 replicas", LENET, 2, 2, ["--mode", "ring", "--gpus", "2"]),
        ("data of a file", [*WINE, "--drop-last"], 2, 2, ["--mode", "ring", "--gpus", "2"]),
        ("lenet on 3 devices", LENET, 3, 1, ["--mode", "none"], devices),
        ("lenet on 2 devices of 2 ranks", LENET, 2, 2, ["--mode", "ring", "--gpus", "2"], devices)], at_check=3)
@long_cases([("resnet18, which has buffers, in 3", NORM, 3, 1, ["--mode", "none"])])
def a_checkpoint_of_stages_is_that_of_the_whole_model_and_each_goes_on_from_the_other(words, count, replicas, whole, on=stages):
    split = [*words, *on(count, replicas)]
    run(*words, *whole, *ADAM, "--steps", "3", "--save", path("whole"))
    run(*split, *ADAM, "--steps", "3", "--save", path("split"))
    expect(tensors("split") == tensors("whole"), "the tensors are not those of the whole model")
    end = end_of([*words, *whole], "whole")
    expect_equal([end_of(go_on, source) for go_on, source in ((split, "whole"), ([*words, *whole], "split"))], [end] * 2,
                 "hash and losses of what goes on")


@more_test
def stages_and_policies_go_on_from_each_other():
    alike = [[*LENET, *stages(2)], [*LENET, *stages(3)], [*LENET, "--mode", "none"]]
    pairs = [[*LENET, *TWO_SHOT, "--policy", policy] for policy in ("ddp", "zero1")]
    pairs.append([*LENET, *stages(2, 2), "--algorithm", "two-shot", "--divide", "after"])
    zero3 = [*LENET, *TWO_SHOT, "--policy", "zero3"]  # which adds the averages of micro-batches, in another order
    for source, name in ((alike[1], "three"), (alike[0], "two"), (pairs[1], "zero1"), (zero3, "zero3")):
        run(*source, *ADAM, "--steps", "2", "--save", path(name))
        for group in (alike, pairs):
            ends = [end_of(words, name) for words in group]
            expect(all(end == ends[0] for end in ends), f"from {name}: {ends}")


@cases([("on ranks", stages), ("on devices", devices)])
def a_parameter_of_two_stages_is_saved_once(on):
    split = [*TIED, *on(3)]
    run(*TIED, "--mode", "none", *ADAM, "--steps", "4", "--save", path("whole"))
    run(*split, *ADAM, "--steps", "4", "--save", path("split"))
    expect_equal(list(tensors("split")), list(tensors("whole")), "names")
    for key, (_, shape, data) in tensors("split").items():
        pairs = zip(memoryview(data).cast("f"), memoryview(tensors("whole")[key][2]).cast("f"))
        expect(all(abs(a - b) <= 1e-5 * (1 + abs(b)) for a, b in pairs), f"{key} {shape} differs by more than rounding")
    run(*split, *ADAM, "--steps", "2", "--save", path("part"))
    run(*split, *ADAM, "--steps", "2", "--load", path("part"), "--save", path("resumed"))
    expect(content("resumed") == content("split"), "a resumed run does not end as one that was not interrupted")


@test
def the_last_of_several_checkpoints_is_the_final_state():
    run(*ONE, "--steps", "9", "--save", path("end"))
    run(*ONE, "--steps", "9", "--save-every", "4", "--save", path("often"))
    expect(content("end") == content("often"), "the checkpoints differ")
    run(*RING, "--gpus", "2", "--steps", "9", "--save-every", "2", "--save", path("runs"))
    run(*RING, "--gpus", "2", "--steps", "9", "--save", path("alike"))
    expect(tensors("runs") == tensors("alike"), "the last of several checkpoints holds another state")
    run(*LENET, *stages(2), "--steps", "5", "--save", path("end"))
    run(*LENET, *stages(2), "--steps", "5", "--save-every", "2", "--save", path("often"))
    expect(content("end") == content("often"), "the checkpoints of stages differ")
    expect_equal([n for n in os.listdir(FOLDER.name) if n.endswith(".partial")], [], "files left behind")


def position(name):
    with open(path(name), "rb") as file:
        about = json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]
    return tuple(int(about[f"psring.{key}"]) for key in ("epoch", "epoch_step"))


@cases([("36 steps instead of 9", 4, 1), ("9 steps instead of 36", 1, 4)])
def epochs_end_where_they_end_though_the_number_of_ranks_changes_the_steps_of_an_epoch(before, after):
    words = [*WINE, "--mode", "ring", "--batch", "4"]
    run(*words, "--gpus", before, "--epochs", "3", "--save", path("before"))
    run(*words, "--gpus", after, "--epochs", "4", "--load", path("before"), "--save", path("after"))
    expect_equal((position("before"), position("after")), ((3, 0), (4, 0)), "epochs and steps")


@test
def an_epoch_that_is_shorter_now_ends_if_more_of_its_steps_are_done():
    words = [*WINE, "--mode", "ring", "--batch", "4"]
    run(*words, "--gpus", "1", "--steps", "30", "--save", path("before"))
    run(*words, "--gpus", "4", "--steps", "2", "--load", path("before"), "--save", path("after"))
    expect_equal((position("before"), position("after")), ((0, 30), (1, 2)), "epochs and steps")


@test
def state_that_servers_in_separate_processes_keep_is_neither_saved_nor_loaded():
    own = [*PS, "--policy", "ps=sync", "--gpus", "2", "--server-placement", "own", "--steps", "2"]
    run(*ONE, *ADAM, "--steps", "2", "--save", path("adam"))
    for option in (["--save", path("none")], ["--load", path("adam")]):
        result = harness("run", *own, *ADAM, *option)
        expect_equal((result.code, result.err.count("\n")), (78, 1), "exit code and lines", result)
        expect(f"{option[0]}: expected --server-placement rank, --server-optimizer off or an optimizer without state, got adam" in result.err,
               "the reason", result)
    ends = []
    for words in ([*own, *ADAM, "--server-optimizer", "off"], [*PS, "--policy", "ps=sync", "--gpus", "2", "--steps", "2", *ADAM]):
        run(*words, "--load", path("adam"), "--save", path("end"))
        ends.append(content("end"))
    expect(ends[0] == ends[1], "ranks keep the state, and servers on ranks")
    run(*own, "--save", path("end"))


def damaged(name, change):
    run(*ONE, "--steps", "2", "--save", path("good"))
    with open(path(name), "wb") as file:
        file.write(change(content("good")))
    return path(name)


@cases([
    ("no such folder to save in", ["--save", "/nonexistent/file"], 73, "/nonexistent/file"),
    ("a name of several files", ["--save", path("file.index.json")], 64, "expected the name of one file"),
    ("a checkpoint in several files", ["--load", path("file.index.json")], 65, "safetensors.torch.save_model(model, FILE); the last commit that reads several of this program is 64fafa80"),
    ("--save-every without a file", ["--save-every", "5"], 64, "--save-every"),
    ("no such file", ["--load", "/nonexistent"], 65, "/nonexistent"),
    ("a truncated file", ["--load", damaged("short", lambda b: b[:200])], 65, "at offset"),
    ("an edited file", ["--load", damaged("edited", lambda b: b[:-8] + b"12345678")], 65, "at offset"),
    ("a foreign file", ["--load", os.path.abspath(__file__)], 65, "at offset"),
    ("another model", ["--load", path("good"), "--model", "toy", "--data", "synthetic"], 65, "'wine_mlp'"),
    ("another optimizer", ["--load", path("good"), "--optimizer", "adam"], 65, "'adam'"),
    ("another seed", ["--load", path("good"), "--seed", "7"], 78, "--seed"),
    ("all engines at once", ["--save", path("x"), "--mode", "both"], 64, "--save"),
])
def a_checkpoint_that_cannot_be_used_is_refused_in_one_line(words, code, text):
    result = harness("run", *ONE, "--steps", "1", *words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(text in result.err, result)


main()
