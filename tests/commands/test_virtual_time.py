"""Virtual time from the command line: profiles, runs, and wrong input."""
import json
import os
import re
import statistics
import tempfile

from profiles import FILES, profile, run
from program import harness, in_ns
from tap import cases, expect, expect_equal, main, more_test, test

CONSTANT = {"value": 1.5, "unit": "1", "tag": "assumed", "source": "a test"}


@cases([
    ("an unknown profile", run("--device", "sim:nowhere"), 64, "profile or its file: expected one of cpu,"),
    ("profiles of an unknown name", ("profiles", "dgx1-v10"), 64, "did you mean 'dgx1-v100'?"),
    ("more GPUs than there are", run("--device", "sim", "--gpus", "9"), 78, "expected 1 to 8 ranks (8 GPUs on each of 1 machine), got 9"),
    ("a missing constant", run("--device", "sim:" + profile("missing", base="nccl", topology={
        "machines": 1, "peer_access": True, "source": "a test", "links": [["gpu0", "socket0", "pcie"]]})), 65, "missing"),
    ("an absurd constant", run("--device", "sim:" + profile("absurd", constants={"kappa": dict(CONSTANT, value=7)})), 65,
     "kappa"),
    ("a wrong unit", run("--device", "sim:" + profile("unit", constants={"kappa": dict(CONSTANT, unit="ms")})), 65, "kappa"),
    ("an unknown constant", run("--device", "sim:" + profile("unknown", constants={"kapa": CONSTANT})), 65, "kapa"),
    ("a precision that GPUs lack", run("--device", "sim", "--tf32"), 78, "expected precision fp32, got tf32"),
    ("two half precisions", run("--device", "sim", "--fp16", "--bf16"), 64, "--fp16: unexpected with --bf16"),
    ("bfloat16 on GPUs that lack it", run("--device", "sim", "--bf16"), 78, "expected precision fp32, got bf16"),
    ("two precisions", run("--device", "sim:dgx-h100", "--tf32", "--bf16"), 64, "--bf16: unexpected with --tf32"),
    ("two precisions of whatif", ("whatif", "--tf32", "--bf16"), 64, "--bf16: unexpected with --tf32"),
    ("whatif twice to stdout", ("whatif", "--json", "-", "--csv", "-"), 64, "--csv -: unexpected with --json -"),
    ("steps of a time line of whatif", ("whatif", "--trace-steps", "1:2"), 64, "--trace-steps: unexpected with whatif"),
    ("threads", run("--device", "sim", "--threads", "2"), 78, "--threads: expected a real device"),
    ("transforms of data", run("--device", "sim", "--augment", "flip"), 78, "--augment: expected a real device"),
    ("a network in a machine", run("--device", "sim:dgx1-v100-4xib100", "--gpus", "2", "--link", "10Gbit/s,5us"), 78,
     "--link: expected ranks on several machines, got 2 on one of profile dgx1-v100-4xib100: take --nodes"),
    ("a network where there is none", run("--device", "sim", "--link", "10Gbit/s,5us"), 78, "expected a profile with a network"),
    ("a time line nowhere", run("--device", "sim", "--trace", "/no/such/folder/x.json"), 73, "/no/such/folder"),
    ("a link without latency on a CPU", run("--device", "cpu", "--link", "10Gbit/s"), 64, "--link: expected RATE,LATENCY"),
    ("efficiencies on a CPU", run("--device", "cpu", "--efficiency", "2"), 64, "--efficiency: expected --device sim:PROFILE, got cpu"),
    ("whatif of a CPU", ("whatif", "--device", "cpu"), 64, "--device: expected sim:PROFILE, got cpu"),
    ("whatif of two profiles", ("whatif", "--device", "sim", "--profile", "dgx1-v100"), 64, "--device: unexpected with --profile"),
    ("whatif of one engine", ("whatif", "--mode", "ring"), 64, "--mode: unexpected with whatif"),
    ("a time line of whatif", ("whatif", "--trace", FILES.name + "/x.json"), 64, "--trace: unexpected with whatif"),
    ("whatif of a server that no policy has", ("whatif", "--policy", "ddp", "--servers", "2"), 64,
     "--servers: expected a policy of ps, got none"),
    ("whatif several times", ("whatif", "--repeat", "5"), 64, "--repeat: unexpected with whatif"),
    ("whatif as a page", ("whatif", "--report", FILES.name + "/x.html"), 64, "--report: unexpected with whatif"),
    ("whatif of two measurements of one GPU", ("whatif", "--measured", "1:10,1:20"), 64, "--measured: expected 1:SAMPLES_PER_S and at most one"),
    ("whatif of two measurements of several GPUs", ("whatif", "--measured", "1:10,4:20,8:30"), 64, "got '1:10,4:20,8:30'"),
    ("whatif without a measurement of one GPU", ("whatif", "--measured", "8:20"), 64, "--measured: expected 1:SAMPLES_PER_S"),
    ("whatif of a measurement without a rate", ("whatif", "--measured", "1:10,8"), 64, "got '1:10,8'"),
    ("whatif of a measurement and an efficiency", ("whatif", "--measured", "1:10", "--efficiency", "0.5"), 64,
     "--efficiency: unexpected with --measured, which determines it"),
    ("whatif of a GPU that is faster than float32", ("whatif", "--profile", "dgx-a100-80g", "--model", "resnet50", "--measured", "1:900"), 78,
     "--measured: expected at most 776 samples/s, which profile dgx-a100-80g reaches in float32 at its highest efficiency, got 900: "
     "add --tf32, --bf16 or --fp16\n"),
    ("whatif of a GPU without TF32 that is faster than float32", ("whatif", "--model", "resnet50", "--measured", "1:2000"), 78, "got 2000: add --fp16\n"),
    ("whatif of a GPU that is faster than TF32", ("whatif", "--profile", "dgx-a100-80g", "--model", "resnet50", "--tf32", "--measured", "1:9000"), 78,
     "profile dgx-a100-80g reaches at its highest efficiency, got 9000\n"),
    ("whatif of a GPU that is too slow", ("whatif", "--profile", "dgx-a100-80g", "--model", "resnet50", "--measured", "1:0.5"), 78,
     "--measured: expected at least 0.75 samples/s, which profile dgx-a100-80g reaches at its lowest efficiency, got 0.50\n"),
    ("a high efficiency", run("--device", "sim", "--efficiency", "3"), 78, "--efficiency: expected 0.002 to 2.222 for profile v100-pcie-32g, got 3\n"),
    ("whatif with a word too many", ("whatif", "resnet50"), 64, "whatif: unexpected argument 'resnet50'"),
    ("whatif with a wrong option", ("whatif", "--btach", "3"), 64, "unknown option '--btach'; did you mean --batch?"),
    ("a rendezvous", run("--device", "sim", "--rendezvous", "env://"), 78, "--rendezvous: expected a real device"),
    ("evaluations", run("--device", "sim", "--eval-every", "5"), 78, "--eval-every: expected a real device"),
    ("patience at the start", run("--device", "sim", "--connect-timeout", "5s"), 78, "--connect-timeout: expected a real device"),
    ("loader threads", run("--device", "sim", "--loader-threads", "3"), 78, "--loader-threads: expected a real device"),
    ("whatif of bits or bytes", ("whatif", "--link", "10gb/s,1us"), 64, "expected a rate such as 10Gbit/s or 1.25GB/s"),
    ("jitter on a CPU", run("--jitter", "3"), 64, "--jitter: expected --device sim:PROFILE, got c"),
    ("saving what is not there", run("--device", "sim", "--save", FILES.name + "/x.safetensors"), 78, "--save"),
    ("an unknown table", ("reproduce", "torch"), 64, "reproduce: expected one of torch-vs-apex"),
    ("a table on a CPU", ("reproduce", "dp-vs-ddp", "--device", "cpu"), 64, "--device: expected sim:PROFILE"),
    ("whatif of an unknown policy", ("whatif", "--policy", "dpp"), 64, "got 'dpp'; did you mean 'dp'?"),
    ("whatif of warm-up steps only", ("whatif", "--model", "wine_mlp", "--data", "wine", "--batch", "40", "--epochs", "1", "--warmup", "1", "--drop-last",
                                      "--gpus", "2"), 78, "--warmup: expected fewer steps than 2 GPUs train, got all of them"),
    ("whatif of no link", ("whatif", "--gpus", "2", "--link", "1GB/s,1us"), 78, "expected a profile with a network"),
])
def wrong_input_is_answered_with_one_line(words, code, line):
    result = harness(*words)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(line in result.err, f"expected '{line}'", result)


@test
def every_profile_shows_where_its_constants_come_from():
    names = [line.split()[0] for line in harness("profiles").out.splitlines() if line and not line.startswith(" ")]
    for name in ("v100-pcie-32g", "dgx1-v100", "dgx1-v100-4xib100", "v100-sxm2-ib100", "dgx1-p100", "gce-k80", "dgx-a100-40g",
                 "dgx-a100-80g", "dgx-h100", "hgx-h200", "titan-rtx-x2", "titan-rtx-x2-no-p2p", "v100-pcie-10gbe", "cpu"):
        expect(name in names, f"expected the profile {name} in {names}")
        shown = harness("profiles", name).out
        expect("kappa: " in shown and "topology: " in shown and "source: " in shown, name, shown)


@test
def a_broken_profile_of_the_user_hides_no_other_and_one_with_a_taken_name_is_named():
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        folder = os.path.join(home, "psring", "profiles")
        os.makedirs(folder)
        for name, text in (("broken", "{"), ("empty", "[]")):
            with open(os.path.join(folder, name + ".json"), "w", encoding="ascii") as file:
                file.write(text)
        taken = os.path.join(folder, "dgx1-v100.json")
        os.rename(profile("dgx1-v100", constants={}), taken)
        shown = harness("profiles", env={"XDG_DATA_HOME": home, "COLUMNS": "300"})
        expect_equal((shown.code, len(shown.lines())), (65, 2), "exit code and lines on stderr", shown)
        expect(all(f"/{name}.json" in shown.err for name in ("broken", "empty")), "the broken profiles", shown)
        note, text = f"not used, since the name is taken: {taken} ", " ".join(shown.out.split()) + " "
        expect(note in text, "the profile that is not used", shown)
        expect_equal(text.replace(note, "").split(), harness("profiles").out.split(), "all other profiles", shown)
        one = harness("profiles", "dgx1-v100", env={"XDG_DATA_HOME": home})
        expect(note in " ".join(one.out.split()) + " ", "the profile that is not used", one)
        memory = harness("memory", "--model", "toy", env={"XDG_DATA_HOME": home})
        expect_equal((memory.code, memory.out), (0, harness("memory", "--model", "toy").out), "memory on all other profiles", memory)
        expect(all(f"/{name}.json" in memory.err for name in ("broken", "empty")), "the broken profiles", memory)


@test
def the_same_command_gives_the_same_results():
    words = run("--device", "sim", "--gpus", "4", "--json", "-", "--jitter", "5")
    first, second = (harness(*words).json() for _ in range(2))
    for result in (first, second):
        expect(result["simulated"], "simulated is not set")
        del result["started_at"], result["checksum"]  # the checksum is also of the former
    expect_equal(first, second, "results")
    other = harness(*run("--device", "sim", "--gpus", "4", "--json", "-", "--jitter", "6")).json()
    expect(other["jobs"] != first["jobs"], "another seed of the jitter gives the same times")


@cases([("a rank alone", "none", 1, ""), ("the ring", "ring", 2, "ring=ddp"), ("replicas", "ps", 2, "ps=dp")])
def the_next_batch_is_copied_during_a_step(mode, ranks, policy):
    words = ["run", "--mode", mode, "--gpus", ranks, "--model", "resnet50", "--batch", "128", "--steps", "3", "--json", "-", "--quiet",
             "--device", "sim:dgx-h100", *(["--policy", policy] if policy else [])]
    jobs = [harness(*words, "--prefetch", value).jobs()[mode] for value in ("off", "on")]
    load, total = ([job["ranks"][0][key][-1] for job in jobs] for key in ("data_s", "step_s"))
    copied = jobs[1]["ranks"][0]["batch_copy_s"][-1]
    expect(load[0] > 5e-4 and load[1] < 0.1 * load[0], f"load without and with: {load}")
    expect(0.9 * load[0] < copied < 1.1 * load[0], f"a copy takes {copied}, and as a part of the step {load[0]}")
    expect(total[1] < total[0] - 0.5 * (load[0] - load[1]), f"steps without and with: {total}")
    expect_equal([job["ranks"][0]["batch_copy_s"][-1] is None for job in jobs], [True, False], "is it measured")


@more_test
def memory_equals_that_of_the_cpu():
    words = ("run", "--mode", "both", "--model", "lenet", "--steps", "2", "--gpus", "2", "--json", "-", "--quiet")
    sim, cpu = harness(*words, "--device", "sim", "--prefetch", "off").jobs(), harness(*words).jobs()
    for engine in ("none", "ps", "ring"):
        for a, b in zip(sim[engine]["ranks"], cpu[engine]["ranks"]):
            for phase, held in a["memory"]["phases"].items():
                if phase == "after_step":
                    continue  # A phase ends when the next step begins; on the CPU the last one ends when the evaluation begins.
                found, expected = held["end_classes"], b["memory"]["phases"][phase]["end_classes"]
                for name in found:
                    if name != "workspace":
                        expect_equal(found[name], expected[name], f"{engine}, rank {a['rank']}, {phase}, {name}")


@more_test
def a_calibrated_machine_prints_predictions_next_to_measurements():
    words = ("run", "--mode", "both", "--policy", "ps=sync,ring=ddp", "--model", "lenet", "--steps", "6", "--gpus", "2",
             "--device", "cpu", "--quiet")
    with tempfile.TemporaryDirectory(prefix="home-") as home:
        folder = os.path.join(home, "psring", "profiles")
        os.makedirs(folder)
        mine = os.path.join(folder, "this-machine.json")
        os.rename(profile("this-machine", base="cpu", constants={}), mine)
        jobs = harness(*words, "--json", "-", env={"XDG_DATA_HOME": home}).jobs()
        expect_equal([name for name, job in jobs.items() if "prediction" in job], ["none", "ps", "ring"], "jobs with a prediction")
        for name, job in jobs.items():
            if name in ("all-cores", "isolated"):  # No profile describes the threads of one, and the other has no exchange to predict.
                continue
            p, own = job["prediction"], [statistics.median(rank["step_s"]) for rank in job["ranks"]]
            expect_equal(p["profile"], mine, "profile")
            expect(abs(p["measured_s"] / statistics.mean(own) - 1) < 1e-9, f"{name}: {p['measured_s']}, expected of {own}")
            expect(abs(p["error"] - (p["step_median_s"] / p["measured_s"] - 1)) < 1e-9, f"{name}: error", p)
        shown = harness(*words, "--verbose", env={"XDG_DATA_HOME": home}).out
        expect("SIMULATED: predicted" in shown and "prediction / own steps - 1" in shown, "a report with the prediction", shown)
        other = harness(*words, "--verbose", env={"XDG_DATA_HOME": FILES.name})
        expect("SIMULATED: predicted" not in other.out, "a prediction without a profile", other)


@test
def slow_ranks_and_transports_slow_a_virtual_run_too():
    def step_ns(*words):
        words = ("run", "--mode", "ps", "--gpus", "2", "--model", "vgg16", "--image", "32", "--steps", "3", "--quiet", *words)
        return harness(*words, "--device", "sim:cpu", "--json", "-").jobs()["ps"]["step_time"]["median_s"]

    plain, shm, zmq = (step_ns("--policy", "sync", *words) for words in ((), ("--payload", "shm"), ("--payload", "zmq")))
    expect_equal(shm, plain, "a step through shared memory, which is what ranks of one host take")
    expect(zmq > plain, f"through sockets {zmq} ns, through shared memory {plain} ns")
    slow = step_ns("--policy", "sync", "--slow", "1:3")
    expect(slow > 2 * plain, f"with a slow rank {slow} ns, without one {plain} ns")


# In an earlier version agents worked ahead of the clock, and did not see what arrived in the meantime.
@cases([("dp", "dp", []), ("dp in messages", "dp", ["--payload", "zmq"]), ("sync", "sync", []), ("sync, own servers", "sync", ["--server-placement", "own"])])
def measured_steps_count_their_bytes_and_not_those_of_the_flush_after_them(policy, words):
    words = ["run", "--mode", "ps", "--policy", policy, "--gpus", "3", "--model", "toy", "--batch", "6", "--warmup", "2", "--quiet", "--json", "-",
             "--payload", "shm", *words]

    def per_step(device, steps):
        rows = harness(*words, "--device", device, "--steps", steps).jobs()["ps"]["traffic"]["per_rank"]
        return [(row["bytes_sent_per_step"], row["bytes_received_per_step"]) for row in rows]
    of_2 = per_step("sim:cpu", "2")
    expect_equal(per_step("sim:cpu", "5"), of_2, "per step, of 5 steps and of 2")
    if "own" not in words:
        expect_equal(sum(sent for sent, _ in of_2), sum(received for _, received in of_2), "bytes sent and received, of all ranks")
    if policy == "dp":
        expect_equal(per_step("cpu", "2"), of_2, "of real ranks")


@test
def a_faster_network_makes_servers_no_slower():
    def step_s(rate):
        words = ("run", "--device", "sim:v100-pcie-10gbe", "--gpus", "8", "--mode", "ps", "--policy", "sync", "--servers", "8",
                 "--model", "resnet50", "--link", rate, "--steps", "3", "--quiet", "--json", "-")
        return harness(*words).jobs()["ps"]["step_time"]["median_s"]

    slow, fast = (step_s(rate) for rate in ("50Gbit/s", "100Gbit/s"))
    expect(fast <= slow, f"{1e3 * fast:.1f} ms at 100 Gbit/s, {1e3 * slow:.1f} ms at 50 Gbit/s")


@test
def virtual_runs_report_the_times_of_buckets():
    def phases(policy):
        words = ("run", "--mode", "ring", "--policy", policy, "--gpus", "4", "--device", "sim", "--model", "resnet18",
                 "--image", "64", "--steps", "3", "--quiet", "--json", "-")
        job = harness(*words).json()["jobs"][0]
        return {name: job["phases"][name]["median_s"] for name in (
            "communication_s", "hidden_communication_s", "first_to_backward_end_s", "backward_s", "last_bucket_s")}

    ddp, late = phases("ddp"), phases("torch-0.4.1")
    expect(0 < ddp["hidden_communication_s"] <= ddp["communication_s"], "hidden under ddp", ddp)
    expect(0 < ddp["first_to_backward_end_s"] <= ddp["backward_s"], "first all-reduce under ddp", ddp)
    expect(0 < ddp["last_bucket_s"] < ddp["communication_s"], "last bucket under ddp", ddp)
    expect_equal((late["hidden_communication_s"], late["first_to_backward_end_s"]), (0, 0), "under torch-0.4.1", late)


TREES = ("run", "--mode", "ring", "--gpus", "32", "--device", "sim:v100-pcie-10gbe", "--model", "resnet18", "--image", "32",
         "--classes", "10", "--batch", "4", "--warmup", "2", "--steps", "2")


@test
def every_bucket_goes_by_what_is_faster_and_the_job_says_which():
    def job(*words):
        result = harness(*TREES, "--bucket-cap-mb", "0.25", "--verbose", *words, "--json", FILES.name + "/trees.json")
        with open(FILES.name + "/trees.json", encoding="utf-8") as file:
            return result, json.load(file)["jobs"][0]

    result, own = job()
    rows = {row["algorithm"]: row for row in own["algorithms"]}
    expect_equal((own["algorithm"], sorted(rows)), ("library", ["ring", "tree"]), "both are taken", result)
    gradients = 4 * 11181642
    expect_equal(sum(row["bytes_per_step"] for row in rows.values()), gradients, "all gradients", result)
    mean = {name: row["bytes_per_step"] / row["calls_per_step"] for name, row in rows.items()}
    expect(mean["tree"] < mean["ring"], "small calls take trees", own["algorithms"])
    for name, row in rows.items():
        expect(f"{name} {row['calls_per_step']:.4g} call" in result.out, "the report's text", result)
    expect("all-reduce: ring and tree, sim" in result.out.replace("\n  ", " "), "the first sentence", result)
    ring, tree, library = job("--algorithm", "ring")[1], job("--algorithm", "tree")[1], job("--algorithm", "library")[1]
    expect_equal([row["algorithm"] for row in ring["algorithms"] + tree["algorithms"]], ["ring", "tree"], "fixed", ring)
    expect_equal(library["step_s"], own["step_s"], "library is the default")
    expect(own["step_s"][0] < min(ring["step_s"][0], tree["step_s"][0]), "faster than either alone", own["step_s"])


@test
def time_lines_name_the_algorithm_of_a_call():
    path = FILES.name + "/trees-trace.json"
    harness(*TREES, "--bucket-cap-mb", "0.25", "--quiet", "--trace", path)
    with open(path, encoding="utf-8") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if event["ph"] == "X"}
    for name in ("ring all_reduce", "tree all_reduce"):
        expect(name in names, "on the links", sorted(names))
        expect(any(one.startswith(name + " of bucket") for one in names), "on the communication row", sorted(names))


@test
def a_processor_takes_the_ring_of_shared_memory():
    for row in harness("run", "--mode", "ring", "--gpus", "2", "--device", "sim:cpu", "--model", "lenet", "--batch", "4", "--steps",
                       "2", "--quiet", "--json", "-").json()["jobs"]:
        expect_equal((row["algorithm"], [one["algorithm"] for one in row["algorithms"]]), ("ring", ["ring"]), "algorithm")


def lenet_job(engine, *words):
    words = ("run", "--mode", engine, "--model", "lenet", "--steps", "3", "--prefetch", "off", "--quiet", "--json", "-", *words)
    return harness(*words).jobs()[engine]


@cases([("none", "none", ()), ("ring", "ring", ("--gpus", "4", "--policy", "flat")), ("sync", "ps", ("--gpus", "2", "--policy", "sync")),
        ("dp", "ps", ("--gpus", "2", "--policy", "dp"))])
def micro_batches_take_their_passes_and_one_exchange(engine, words):
    """Three batches per step: three times load and forward, one exchange, one update."""
    one, three = (lenet_job(engine, "--device", "sim:dgx1-v100", *words, "--accumulate", n) for n in (1, 3))
    expect_equal(three["throughput"]["samples"], 3 * one["throughput"]["samples"], "samples")
    if "dp" not in words:  # Under dp inputs and outputs are exchanged, too.
        expect_equal(three["traffic"], one["traffic"], "bytes and messages per step")
    alike = [("optimizer_s", 1)] + ([("data_s", 3), ("forward_s", 3)] if engine != "ps" else [])
    for a, b in zip(one["ranks"], three["ranks"]):
        for key, times in alike:
            for x, y in zip(in_ns(a[key]), in_ns(b[key])):
                expect(abs(y - times * x) <= 3, f"rank {a['rank']}, {key}: {y} ns, with one batch {x}")
        if engine == "none":  # later batches read the gradients that they add to
            for x, y in zip(in_ns(a["backward_s"]), in_ns(b["backward_s"])):
                expect(3 * x - 3 <= y < 3.3 * x, f"backward of {y} ns, with one batch {x}")


SUMMED_BYTES = 4 * 61706 * (2 + 1)  # Gradients of LeNet of two workers, and their average.


@test
def the_threads_of_a_server_share_its_sums_until_the_memory_is_the_limit():
    rate, memory = 0.05, 0.3  # GB/s: slow, so that a step waits for sums
    constants = {name: {"value": value, "unit": "GB/s", "tag": "assumed", "source": "a test"}
                 for name, value in (("host_sum", rate), ("host_memory", memory))}
    path = profile("slow-sums", constants=constants)
    step, sums = {}, {}
    for threads in (1, 2, 4, 8, 16):
        words = ["run", "--mode", "ps", "--policy", "sync", "--servers", "1", "--gpus", "2", "--model", "lenet", "--batch", "4",
                 "--steps", "2", "--device", f"sim:{path}", "--server-optimizer", "off", "--server-threads", threads, "--json", "-", "--quiet"]
        step[threads] = harness(*words).jobs()["ps"]["step_time"]["median_s"]
        sums[threads] = SUMMED_BYTES / (min(threads * rate, memory) * 1e9)
    for some, more in ((1, 2), (2, 4)):  # With eight the server also waits for pushes.
        found, expected = step[some] - step[more], sums[some] - sums[more]
        expect(abs(found / expected - 1) < 0.02, f"{more} threads instead of {some} save {found} s, expected {expected} s")
    expect(step[16] == step[8] < step[4], "the step beyond the memory's rate", step)


@test
def a_server_beside_a_gpu_sums_on_it_and_one_in_its_own_process_on_the_host():
    path = profile("slow-host", constants={"host_sum": {"value": 0.01, "unit": "GB/s", "tag": "assumed", "source": "a test"}})
    words = ("--gpus", "2", "--model", "lenet", "--batch", "4", "--steps", "2", "--mode", "ps", "--policy", "sync", "--quiet", "--json", "-")
    usual, own = (harness("run", "--device", f"sim:{path}", *words, *more).jobs()["ps"]["step_time"]["median_s"]
                  for more in ((), ("--server-placement", "own")))
    expect(usual < 0.1 * SUMMED_BYTES / 0.01e9 < own, "a step", usual, own)


@test
def with_several_servers_a_rank_pushes_first_what_the_next_pass_needs_first():
    def step_ms(priority):
        return 1e3 * harness("run", "--device", "sim:dgx1-v100", "--gpus", "8", "--model", "vgg16", "--batch", "32", "--mode", "ps", "--servers", "8",
                             "--policy", f"ps=sync:priority={priority}", "--steps", "3", "--quiet", "--json", "-").jobs()["ps"]["step_time"]["median_s"]

    first, fifo = step_ms("reverse"), step_ms("fifo")
    expect(first < 0.9 * fifo, "priorities shorten the step", first, fifo)
    with open(os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "docs/ps.md"), encoding="utf-8") as file:
        page = " ".join(file.read().split())
    expect(f"takes {first:.0f} ms per step with `reverse`, and {fifo:.0f} with `fifo`" in page, "the page", first, fifo)


@cases([("sync", ["--policy", "sync"]), ("async", ["--policy", "async", "--slow", "1:9"]), ("dp", ["--policy", "dp", "--payload", "zmq"])])
def virtual_ranks_of_a_parameter_server_wait_without_a_time_limit(words):
    result = harness("run", "--mode", "ps", "--device", "sim", "--gpus", "8", "--model", "resnet50", "--steps", "2", "--stall-timeout", "1ms", *words)
    expect_equal((result.code, result.lines()), (0, ["harness: --stall-timeout has no effect here: virtual ranks wait without a time limit"]),
                 "exit code and note", result)


@test
def a_rate_without_latency_is_a_link_of_virtual_time_also_with_a_trace():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        result = harness("run", "--device", "sim:v100-pcie-10gbe", "--gpus", "2", "--mode", "ring", "--model", "lenet", "--steps", "2",
                         "--link", "1Gb/s", "--trace", path)
        expect_equal(result.code, 0, "exit code", result)
        with open(path, encoding="utf-8") as file:
            expect("1 Gbit/s" in json.load(file)["otherData"]["emulated_link"], "the link")


@test
def a_network_of_ones_own_replaces_the_profiles():
    """10 Gbit/s instead of 1.2 GB/s, 5 us: an all-reduce of 246,824 bytes over four hosts."""
    words = ("--device", "sim:v100-pcie-10gbe", "--gpus", "4", "--policy", "flat")
    own, slow = lenet_job("ring", *words)["ranks"][0], lenet_job("ring", *words, "--link", "1Gbit/s,5us")["ranks"][0]
    bytes_sent = 2 * 3 / 4 * 4 * 61706
    for a, b in zip(own["communication_s"], slow["communication_s"]):
        more = bytes_sent * (1 / 0.125e9 - 1 / 1.2e9)
        expect(abs((b - a) - more) < 0.15 * more, f"{b - a} s more, expected {more}")


@test
def dataparallel_gathers_what_a_module_returns():
    """Logits, and keys and values of 12 layers, in float32, over two NVLinks of 20 GB/s each."""
    def step_s(gathered):
        return harness("run", "--device", "sim:titan-rtx-x2", "--mode", "ps", "--policy", "dp", "--gpus", "2", "--model", "gpt2", "--sequence",
                       "1024", "--batch", "4", "--dp-loss", "replica", "--dp-host", "none", "--payload", "nccl", "--dp-gather", gathered,
                       "--steps", "1", "--quiet", "--json", "-").jobs()["ps"]["step_s"][0]

    loss, outputs, caches = step_s("loss"), step_s("outputs"), step_s("caches")
    tokens, rate = 4 * 1024, 2 * 20e9
    expect(abs(outputs - loss - 4 * tokens * 50257 / rate) < 1e-4, f"logits take {outputs - loss} s")
    expect(abs(caches - outputs - 4 * tokens * 768 * 2 * 12 / rate) < 1e-6, f"keys and values take {caches - outputs} s")
    refused = harness("run", "--device", "sim", "--mode", "ps", "--policy", "dp", "--gpus", "2", "--model", "lenet", "--dp-gather", "outputs")
    expect_equal((refused.code, "--dp-gather: expected --dp-loss replica" in refused.err), (78, True), "one loss", refused)


@test
def precision_options_work_on_virtual_devices():
    def step_ns(*words):
        words = ("run", "--mode", "none", "--model", "resnet50", "--batch", "64", "--steps", "1", "--quiet", *words)
        return harness(*words, "--device", "sim:dgx-a100-40g", "--json", "-").jobs()["none"]["step_time"]["median_s"]

    fp32, tf32, bf16 = step_ns(), step_ns("--tf32"), step_ns("--bf16")
    expect(fp32 > 2 * tf32 and tf32 > bf16, f"steps of {fp32}, {tf32} and {bf16} ns in float32, TF32 and bfloat16")


@test
def the_page_shows_what_its_first_example_prints():
    with open(os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "docs/simulation.md"), encoding="utf-8") as file:
        command, printed = re.search(r"^    harness (run --device sim:[^\n]*)\n\n[^\n]*\n\n((?:    [^\n]*\n)+)", file.read(), re.M).groups()
    expect_equal(harness(*command.split()).out, re.sub("^    ", "", printed, flags=re.M), "stdout")


if __name__ == "__main__":
    main()
