"""Clusters without a ready profile: from --gpu and its options, or from the output of `nvidia-smi topo -m`."""
import os
import re
import tempfile

from program import harness
from tap import cases, expect, expect_equal, main, test

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
FILES = tempfile.TemporaryDirectory(prefix="clusters-")
WORK = ("--model", "resnet18", "--image", "64", "--batch", "16", "--steps", "3", "--warmup", "1", "--quiet")
RING, SYNC, DP = ("--mode", "ring"), ("--mode", "ps", "--policy", "sync"), ("--mode", "ps", "--policy", "dp")


def topology(name):
    return os.path.join(ROOT, "tests/commands/topologies", name + ".txt")


def written(name, content):
    path = os.path.join(FILES.name, name)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def contents(name):
    with open(topology(name), encoding="ascii") as file:
        return file.read()


def run(*words):
    return harness("run", *WORK, *words, "--json", "-").json()["jobs"][0]


def steps(*words):
    return [rank["step_s"] for rank in run(*words)["ranks"]]


def step(*words):
    return run(*words)["step_time"]["median_s"]


def wiring(name):
    """Links of a profile, as a sorted list."""
    lines = harness("profiles", name).out.split("\ntopology: ")[1].split("\n  gpu0", 1)[1]
    return sorted(re.split(r", *", re.sub(r"\s+", " ", "gpu0" + lines.replace("\n  gpu", ", gpu").replace("\n  switch", ", switch")
                                          .replace("\n  socket", ", socket").replace("\n  nic", ", nic")).strip()))


# ---- the same as ready profiles ----------------------------------------------------------------

NVLINK_H100, NVLINK_A100, NVLINK_V100 = (("--gpu", gpu, "--nvlink") for gpu in ("h100", "a100", "v100"))
READY = [("DGX H100", "dgx-h100", ("--gpu", "h100", "--per-host", "8", "--nvlink", "--adapters", "8")),
         ("DGX A100", "dgx-a100-40g", NVLINK_A100), ("DGX A100 from a file", "dgx-a100-40g", ("--gpu", "a100", "--topology", topology("dgx-a100"))),
         ("DGX-1", "dgx1-v100-4xib100", (*NVLINK_V100, "--adapters", "4")),
         ("DGX-1 from a file", "dgx1-v100-4xib100", ("--gpu", "v100", "--topology", topology("dgx1-v100")))]


@cases(READY)
def composed_machines_take_the_very_time_of_the_ready_profile(profile, words):
    for mode in (RING, SYNC, DP):
        for gpus in ("8",) if mode is DP else ("8", "16"):
            expect_equal(steps(*mode, "--gpus", gpus, *words), steps(*mode, "--gpus", gpus, "--device", "sim:" + profile), f"steps on {gpus} GPUs, {mode}")
    drawn = [steps(*RING, "--gpus", "16", "--draw", "3", *of) for of in (words, ("--device", "sim:" + profile))]
    expect_equal(drawn[0], drawn[1], "steps of a draw")


@cases([("eight PCIe cards", "v100-pcie-32g", "8", ("--gpu", "v100-pcie")), ("K80", "gce-k80", "8", ("--gpu", "k80")), ("P100", "dgx1-p100", "8", ("--gpu", "p100", "--nvlink")),
        ("H200", "hgx-h200", "16", ("--gpu", "h200", "--nvlink")), ("two TITAN RTX", "titan-rtx-x2", "2", ("--gpu", "titan-rtx", "--nvlink")),
        ("a DGX-1 whose file has no adapters", "dgx1-v100", "8", ("--gpu", "v100", "--topology", topology("dgx1-v100-no-adapters")))])
def other_composed_machines_do_too(profile, gpus, words):
    expect_equal(steps(*RING, "--gpus", gpus, *words), steps(*RING, "--gpus", gpus, "--device", "sim:" + profile), "steps")


@test
def a_dgx_h100_from_a_file_has_a_switch_per_gpu_unlike_the_ready_profile():
    # The ready profile assumes two GPUs per switch. The file shows that each GPU shares a switch only with its adapter.
    links = wiring("h100:topology=" + topology("dgx-h100"))
    expect(all(f"gpu{g}-switch{g} pcie" in links and f"nic{g}-switch{g} pcie" in links for g in range(8)), "a switch per GPU", links)
    expect(all(f"gpu{g}-nvswitch0 nvlink x18" in links for g in range(8)), "18 NVLinks per GPU", links)
    words = (*RING, "--gpus", "16")
    times = step(*words, "--gpu", "h100", "--topology", topology("dgx-h100")), step(*words, "--device", "sim:dgx-h100")
    expect(abs(times[0] / times[1] - 1) < 0.01, "the steps differ by less than 1 %", times)
    no_adapters = re.sub(r"(?m)^NIC\d.*\n", "", contents("dgx-h100").replace("".join(f"NIC{n}\t" for n in range(12)), ""))
    no_adapters = re.sub(r"(?m)^(GPU\d(?:\t *\w+ *){8})(?:\t *(?:PXB|NODE|SYS|PIX)){12}", r"\1", no_adapters)
    same = ("--gpu", "h100", "--topology", written("h100.txt", no_adapters), "--adapters", "8")
    expect_equal(steps(*RING, "--gpus", "8", *same), steps(*RING, "--gpus", "8", "--device", "sim:dgx-h100"), "without adapters, pairs of GPUs are assumed")


@test
def the_name_of_a_composed_profile_is_a_device_too():
    words = (*RING, "--gpus", "8")
    expect_equal(steps(*words, "--device", "sim:h100:nvlink,per-host=4"), steps(*words, *NVLINK_H100, "--per-host", "4"), "steps")
    first = harness("run", *WORK, *words, *NVLINK_H100, "--per-host", "4", "--json", written("run.json", "")) and step(*words, *NVLINK_H100, "--per-host", "4")
    expect_equal(harness("run", "--config", os.path.join(FILES.name, "run.json"), "--json", "-").json()["jobs"][0]["step_time"]["median_s"], first, "from the results of a run")
    own = harness("whatif", "--gpu", "dgx-a100-80g", "--nvlink", "--gpus", "8", "--draws", "0", "--json", "-", *WORK[:6]).json()
    expect_equal(own["profile"], "dgx-a100-80g:nvlink", "a profile may be the GPU")


@test
def whatif_and_run_agree():
    words = (*NVLINK_H100, "--per-host", "4", "--oversubscription", "2", "--link", "10Gb/s", "--adapters", "2")
    point = harness("whatif", *WORK, *words, "--gpus", "32", "--draws", "0", "--json", "-").json()["points"][0]
    times = [s for rank in steps(*RING, "--gpus", "32", *words) for s in rank]
    expect(abs(point["step_s"] / (sum(times) / len(times)) - 1) < 1e-9, f"{point['step_s']} s of whatif, of run", times[:3])


# ---- the wiring decides ------------------------------------------------------------------------

@test
def nvlink_is_faster_than_pcie_and_more_adapters_than_fewer():
    pcie, nvlink = (step(*RING, "--gpus", "8", "--gpu", "v100", *more) for more in ((), ("--nvlink",)))
    expect(nvlink < 0.9 * pcie, "an all-reduce over NVLink takes less time", pcie, nvlink)
    slow = (*RING, "--gpus", "16", *NVLINK_H100, "--link", "10Gb/s")
    one, eight = (step(*slow, "--adapters", n) for n in ("1", "8"))
    expect(eight < one / 2, "eight adapters instead of one", one, eight)


@cases([("a ready profile", ("--device", "sim:dgx-h100")), ("a composed one", NVLINK_H100)])
def an_oversubscribed_core_multiplies_the_time_on_the_network(words):
    slow = (*RING, "--gpus", "64", *words, "--link", "1Gb/s")
    times = {x: step(*slow, *more) for x, more in ((0, ()), (1, ("--oversubscription", "1")), (2, ("--oversubscription", "2")), (3, ("--oversubscription", "3")))}
    expect_equal(times[1], times[0], "1 is no oversubscription")
    # 64 ranks exchange 11,689,512 parameters of 4 bytes over eight adapters of 0.125 GB/s per host.
    network = 2 * 63 / 64 * 4 * 11689512 / 1e9
    for x in (2, 3):
        expect(abs((times[x] - times[x - 1]) / network - 1) < 0.03, f"from {x - 1} to {x} the network takes another {network} s", times)
    parts = [run(*slow, "--oversubscription", x)["phases"]["exposed_communication_s"]["median_s"] for x in ("1", "2")]
    expect(parts[1] > 1.9 * parts[0], "exposed communication", parts)


@test
def machines_that_are_not_simulated_use_the_core_too():
    words = ("--gpu", "v100", "--nvlink", "--per-host", "4", "--nodes", "8", "--link", "5Gb/s", "--oversubscription", "2", "--gpus", "32")
    for policy, more in (("ddp", ()), ("ddp", ("--algorithm", "hierarchical")), ("ddp", ("--algorithm", "two-shot")), ("ddp", ("--algorithm", "tree")),
                         ("zero3:group=4", ()), ("zero3:group=8", ()), ("zero3:group=2", ())):
        point = harness("whatif", *WORK, *words, "--policy", policy, *more, "--draws", "0", "--json", "-").json()["points"][0]
        times = [s for rank in steps(*RING, *words, "--policy", policy, *more) for s in rank]
        expect(abs(point["step_s"] / (sum(times) / len(times)) - 1) < 1e-9, f"{policy} {more}: {point['step_s']} s by symmetry", sum(times) / len(times))


@test
def hosts_of_a_parameter_server_share_the_core():
    slow = (*SYNC, "--servers", "4", "--gpus", "4", *NVLINK_H100, "--per-host", "1", "--link", "1Gb/s")
    one, four = (step(*slow, "--oversubscription", x) for x in ("1", "4"))
    expect(four > 2 * one, "messages between hosts", one, four)


# ---- files of nvidia-smi -----------------------------------------------------------------------

@cases([("two cards at one bridge", "titan-rtx", "workstation-2", 0, 1, ["gpu0-socket0 pcie", "gpu1-socket0 pcie"]),
        ("four at two processors", "v100-pcie", "workstation-4", 0, 2, ["gpu0-socket0 pcie", "gpu1-socket0 pcie", "gpu2-socket1 pcie", "gpu3-socket1 pcie"]),
        ("NUMA nodes in another order", "v100-pcie", "workstation-5", 0, 2, ["gpu0-socket1 pcie", "gpu1-socket0 pcie", "gpu4-socket0 pcie"]),
        ("NUMA nodes where all is SYS", "v100-pcie", "server-8", 2, 2, ["gpu3-socket0 pcie", "gpu4-socket1 pcie", "nic0-socket1 pcie", "nic1-socket1 pcie"]),
        ("adapters by switch", "v100", "dgx1-v100", 4, 2, ["nic0-switch0 pcie", "nic1-switch1 pcie", "nic2-switch2 pcie", "gpu0-gpu3 nvlink x2", "gpu0-gpu1 nvlink"]),
        ("eight NUMA nodes", "a100", "dgx-a100", 8, 2, ["gpu2-switch1 pcie", "switch1-socket0 pcie", "switch2-socket1 pcie", "gpu7-nvswitch0 nvlink x12"])])
def a_file_determines_the_wiring(gpu, name, adapters, sockets, expected):
    links = wiring(f"{gpu}:topology={topology(name)}")
    expect(all(link in links for link in expected), f"expected {expected}", links)
    expect_equal(len([link for link in links if link.startswith("nic")]), adapters or 1, "adapters", links)
    expect_equal(("socket0-socket1 socket" in links) + 1, sockets, "sockets", links)


@test
def tabs_blanks_escapes_prompts_and_line_ends_make_no_difference():
    plain = wiring("v100:topology=" + topology("dgx1-v100"))
    text = contents("dgx1-v100")
    expect("\x1b[4m" in text and "\t" in text, "the header is underlined")
    for name, variant in (("plain.txt", re.sub(r"\x1b\[\d+m", "", text)), ("blanks.txt", text.expandtabs(8)), ("prompt.txt", "$ nvidia-smi topo -m\n\n" + text),
                          ("dos.txt", text.replace("\n", "\r\n")), ("no legend.txt", text.split("\nLegend")[0]), ("gap.txt", text.replace("\nGPU4", "\n\nGPU4"))):
        expect_equal(wiring("v100:topology=" + written(name, variant)), plain, name)


@test
def a_file_equals_options_and_adapters_may_be_added():
    words = (*RING, "--gpus", "16", "--link", "10Gb/s")
    from_file, options = ("--gpu", "v100", "--topology", topology("dgx1-v100")), (*NVLINK_V100, "--per-host", "8", "--adapters", "4")
    expect_equal(steps(*words, *from_file), steps(*words, *options), "steps")
    two = steps(*words, "--gpu", "v100", "--topology", topology("dgx1-v100-no-adapters"), "--adapters", "2")
    one = steps(*words, "--gpu", "v100", "--topology", topology("dgx1-v100-no-adapters"))
    expect(max(two[0]) < max(one[0]), "two adapters that the file does not list", one[0], two[0])


# ---- what is printed ---------------------------------------------------------------------------

@test
def the_table_says_what_is_given_measured_published_and_guessed():
    def printed(*words):
        return " ".join(harness("whatif", *WORK[:6], "--draws", "0", "--gpus", "16", *words).out.split())

    out = printed(*NVLINK_H100, "--link", "10Gb/s", "--oversubscription", "2")
    for text in ("16 GPUs on 2 machines of 8, with 8 network adapters of 10 Gbit/s", "GPU: 8 per host, with the constants of profile dgx-h100",
                 "PCIe: 4 switches, 2 sockets (guessed), 48 GB/s (published: NCCL", "NVLink: 18 per GPU (published: profile dgx-h100), 20.6 GB/s (published: NCCL",
                 "adapters: 8 per host (published: profile dgx-h100), 1.25 GB/s (given: the command line)",
                 "network: its core carries 1/2 of the adapters' rate (given), 1.5 us (guessed: InfiniBand NDR"):
        expect(text in out, f"expected '{text}'", out)
    file = topology("dgx1-v100")
    out = printed("--gpu", "v100", "--topology", file)
    for text in ("4 switches, 2 sockets (measured: ", "NVLink: 6 per GPU (measured: ", "adapters: 4 per host (measured: ", "its core carries 1/1 of the adapters' rate (guessed)"):
        expect(text in out, f"expected '{text}'", out)
    out = printed("--gpu", "v100", "--topology", topology("dgx1-v100-no-adapters"))
    expect("4 switches, 2 sockets (guessed)" in out and "adapters: 1 per host (guessed)" in out, "what the file does not say", out)
    out = printed("--gpu", "titan-rtx", "--adapters", "1")
    expect("NVLink: 0 per GPU adapters: 1 per host (given), 12 GB/s (guessed: 100 Gbit/s, as in v100-sxm2-ib100)" in out, "a constant that the GPU's profile lacks", out)
    note = " ".join(harness("run", *WORK, *RING, "--gpus", "16", *NVLINK_H100, "--json", "-").json()["hardware_note"].split())
    expect("NVLink: 18 per GPU" in note and "1/1 of the adapters' rate (guessed)" in note, "so do the results of a run", note)
    ready = harness("run", *WORK, *RING, "--gpus", "16", "--device", "sim:dgx-h100", "--oversubscription", "2", "--json", "-").json()["hardware_note"]
    expect("\n  network: its core carries 1/2 of the adapters' rate (given), 1.5 us" in ready and "GPU:" not in ready, "a ready profile with an oversubscribed network", ready)


@test
def profiles_say_how_to_compose():
    out = " ".join(harness("profiles").out.split())
    expect("--topology FILE with the output of nvidia-smi topo -m" in out and "h100, h200, k80" in out, out[-600:])
    expect("the constants of profile dgx-h100" in harness("profiles", "h100:nvlink").out, "and show a composed one")
    memory = harness("memory", *NVLINK_H100, "--per-host", "4", "--gpus", "8")
    expect("zero3:group=4" in memory.out, "memory has groups of a host", memory)


# ---- wrong input -------------------------------------------------------------------------------

H100_FILE = ("--gpu", "h100", "--topology", topology("dgx-h100"))


@cases([("an unknown GPU", ("--gpu", "h10"), 64, "--gpu: expected one of a100, a100-80g, h100, .*, got 'h10'; did you mean 'h100'"),
        ("no GPUs per host", ("--gpu", "h100", "--per-host", "0"), 64, "--per-host: expected an integer from 1 to 16, got '0'"),
        ("too many", ("--gpu", "h100", "--per-host", "17"), 64, "--per-host: expected an integer from 1 to 16, got '17'"),
        ("NVLink of a K80", ("--gpu", "k80", "--nvlink"), 78, "--nvlink: expected at most 0 GPUs per host, as in profile gce-k80, got 8"),
        ("NVLink of PCIe cards", ("--gpu", "v100-pcie", "--nvlink"), 78, "--nvlink: expected at most 0 GPUs per host"),
        ("a larger mesh than there is", ("--gpu", "v100", "--nvlink", "--per-host", "9"), 78, "--nvlink: expected at most 8 GPUs per host, as in profile dgx1-v100-4xib100, got 9"),
        ("undersubscription", ("--gpu", "h100", "--oversubscription", "0.5"), 64, "--oversubscription: expected a number from 1 to 1000, got '0.5'"),
        ("no number", ("--device", "sim", "--oversubscription", "nan"), 64, "--oversubscription: expected a number from 1 to 1000, got 'nan'"),
        ("options without a GPU", ("--nvlink",), 64, "--gpu: expected a name with --per-host, --nvlink or --topology; see harness profiles"),
        ("a file without a GPU", ("--device", "sim", "--topology", "x"), 64, "--gpu: expected a name with --per-host"),
        ("a profile and a GPU", ("--gpu", "h100", "--device", "sim:dgx1-v100"), 64, "--gpu: unexpected with --device sim:dgx1-v100"),
        ("a processor", ("--gpu", "h100", "--device", "cpu"), 64, "--gpu: expected --device sim:PROFILE, got cpu"),
        ("a file and NVLink", (*H100_FILE, "--nvlink"), 64, "--topology: unexpected with --per-host or --nvlink"),
        ("a file and a number", (*H100_FILE, "--per-host", "8"), 64, "--topology: unexpected with --per-host or --nvlink"),
        ("another GPU than in the file", ("--gpu", "v100", "--topology", topology("dgx-h100")), 65, "expected at most the 6 NVLinks that the GPU of --gpu has, got 18"),
        ("an unknown key", ("--device", "sim:h100:hosts=8"), 64, "profile: expected nvlink, pcie, .*, got 'hosts=8'"),
        ("a wrong value of a key", ("--device", "sim:h100:per-host=x"), 64, "--per-host: expected an integer from 1 to 16, got 'x'"),
        ("more ranks than GPUs", ("--gpu", "h100", "--nodes", "1", "--gpus", "9"), 78, "expected 1 to 8 ranks")])
def a_wrong_cluster_is_refused(words, code, message):
    result = harness("run", *WORK, *RING, *words)
    expect_equal(result.code, code, "exit code", result)
    expect(len(result.err.splitlines()) == 1 and re.search(message, result.err), f"expected one line with '{message}'", result)


A_FILE = contents("dgx-h100")
LINES = A_FILE.splitlines(keepends=True)


@cases([("no file", None, "cannot be opened: No such file"), ("an empty file", "", "got an empty file"), ("10 MB", os.urandom(1000) * 10000, "expected at most 1048576 bytes"),
        ("noise", bytes(range(256)) * 100, "got a zero byte"), ("noise without zeros", bytes(range(1, 256)) * 100, "expected a line that begins with GPU0"),
        ("another text", "no such command\n", "line 2: expected a line that begins with GPU0, got the end"),
        ("a bell", A_FILE.replace("GPU1\t", "GPU1\a\t"), r"line 1: expected at most 16 GPUs, numbered from 0, then at most 32 adapters, got 'GPU1\?'"),
        ("an escape that is no color", A_FILE.replace("GPU1\t", "GPU1\x1b]0;title\x07\t"), r"line 1: expected at most 16 GPUs, numbered from 0, then at most 32 adapters, got 'GPU1\?\]0;title\?'"),
        ("a truncated row", A_FILE[:300], "line 3: expected X, NV#, .* for each device, got the end"), ("missing rows", "".join(LINES[:5]), "line 6: expected the row of GPU4, got the end"),
        ("a missing row", "".join(LINES[:3] + LINES[4:]), "line 4: expected the row of GPU2, got 'GPU3'"), ("no header", "".join(LINES[1:]), "line 2: expected the row of GPU0, got 'GPU1'"),
        ("an unknown relation", A_FILE.replace("PXB", "PXA"), "line 2: expected X, NV#, .*, got 'PXA'"), ("no NVLinks", A_FILE.replace("NV18", "NV0"), "got 'NV0'"),
        ("many NVLinks", A_FILE.replace("NV18", "NV" + "9" * 40), "got 'NV9999"), ("two directions that differ", A_FILE.replace("NV18", "NV17", 1), "line 3: expected X in the diagonal, .* a symmetric matrix, got 'NV18'"),
        ("a device far from itself", A_FILE.replace(" X ", "SYS", 1), "line 2: expected X in the diagonal"),
        ("gaps between GPUs", A_FILE.replace("GPU3", "GPU8"), "line 1: expected at most 16 GPUs, numbered from 0, then at most 32 adapters, got 'GPU8'"),
        ("17 GPUs", "\t" + "\t".join(f"GPU{i}" for i in range(17)) + "\n", "line 1: expected at most 16 GPUs, numbered from 0, then at most 32 adapters"),
        ("1,000 devices", "\tGPU0\t" + "\t".join(f"mlx5_{i}" for i in range(1000)) + "\n", "line 1: expected at most 16 GPUs, numbered from 0, then at most 32 adapters"),
        ("NVLinks of an adapter", A_FILE.replace("PXB", "NV2"), "NV# only between GPUs")])
def a_wrong_file_is_one_line(content, message):
    path = os.path.join(FILES.name, "missing") if content is None else written("wrong.txt", content)
    result = harness("whatif", *WORK, "--gpu", "h100", "--topology", path)
    expect_equal(result.code, 65, "exit code", result)
    expect(len(result.err.splitlines()) == 1 and re.search(message, result.err), f"expected one line with '{message}'", result)
    expect(not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.err), "no control characters", result)


if __name__ == "__main__":
    main()
