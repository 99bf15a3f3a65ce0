"""Where engines and the train loop ask which device they run on. A file that is not listed does not ask. The number of questions in
a listed file may shrink: then its number here shrinks, too."""
import os
import re
import subprocess

from tap import cases, expect, expect_equal, main

ROOT = os.environ.get("SOURCE_DIR", os.getcwd())
QUESTION = re.compile(r"device_get_info|sim_device_simulation|sim_device_is_host|host_addressable|->simulated|->real\b|->plans\b|e->stream\b|"
                      r"\bseparate\b|->gpu\b|->nccl\b|->front\b|->staged\b")
# Set-up, one file per transport, and what is still to be moved below the device.
MOST = {
    "ring": {"ring/engine.c": 15, "ring/handshake.c": 1, "ring/ddp/calls.c": 11, "ring/ddp/memory.c": 4,
             "ring/ddp/compress.c": 7, "ring/zero/shards.c": 3, "ring/options.c": 2},
    "ps": {"ps/engine.c": 13, "ps/handshake.c": 6, "ps/policy.c": 1, "ps/port.h": 2, "ps/server/open.c": 1,
           "ps/dataparallel/dataparallel.h": 2, "ps/dataparallel/engine.c": 7, "ps/dataparallel/exchange.c": 1, "ps/dataparallel/memory.c": 1,
           "ps/dataparallel/nccl.c": 7, "ps/dataparallel/nccl_sim.c": 1},
    "harness/train": {"harness/train/trainer_impl.h": 4, "harness/train/open.c": 7,
                      "harness/train/prefetch.c": 1, "harness/train/remote_step.c": 2},
}


def questions(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return len(QUESTION.findall(re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)))


@cases([(folder, folder) for folder in MOST])
def no_file_asks_more_often_which_device_it_runs_on(folder):
    names = subprocess.run(["git", "-C", ROOT, "ls-files", f"{folder}/*.c", f"{folder}/*.h"], check=True, capture_output=True, text=True).stdout.split()
    expect(len(names) > 5, f"{len(names)} files in {folder}")
    wrong = {name: questions(name) for name in names if questions(name) != MOST[folder].get(name, 0)}
    expect_equal(wrong, {}, f"numbers of questions, expected {({name: MOST[folder].get(name, 0) for name in wrong})}")


if __name__ == "__main__":
    main()
