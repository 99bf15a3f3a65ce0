"""Products in bfloat16: the golden trajectories are met within their own limits, training works, and a processor
that cannot multiply bfloat16 reports it."""
import os

from program import harness
from tap import Skip, cases, expect, expect_equal, main, test

FOLDER = os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "tests/golden")
MULTIPLIES = harness("verify", "--bf16", os.path.join(FOLDER, "toy_w1.json")).code != 78
WINE = ["--model", "wine_mlp", "--data", "wine", "--mode", "none", "--epochs", "40", "--batch", "16", "--optimizer", "adam",
        "--quiet", "--json", "-"]


def needs_bfloat16():
    if not MULTIPLIES:
        raise Skip("this processor does not multiply bfloat16")


@cases([(name, name) for name in ("toy_w1", "toy_w4", "wine_mlp_w1", "wine_mlp_w2", "bert_tiny_w1", "bert_tiny_w2",
                                  "gpt2_tiny_w2", "resnet18_32_w1", "resnet18_32_w1_silu", "resnet18_32_w2_syncbn_silu")])
def runs_in_bfloat16_agree_with_pytorch(name):
    needs_bfloat16()
    result = harness("verify", "--bf16", os.path.join(FOLDER, name + ".json"), limit=120)
    expect_equal(result.code, 0, "exit code", result)
    expect(result.out.startswith("agrees "), "the line begins with 'agrees'", result)


@test
def training_in_bfloat16_rounds_and_still_learns():
    needs_bfloat16()
    wide, narrow = harness("run", *WINE), harness("run", *WINE, "--bf16")
    expect_equal((wide.code, narrow.code), (0, 0), "exit codes", wide, narrow)
    wide, narrow = wide.jobs()["none"], narrow.jobs()["none"]
    expect(wide["losses"] != narrow["losses"], "the losses are the same")
    expect(narrow["accuracy"] >= 0.9, f"accuracy {narrow['accuracy']}")
    expect("bfloat16" in narrow["ranks"][0]["device"], narrow["ranks"][0]["device"])


@cases([
    ("a processor without it", ["--bf16"], {"ONEDNN_MAX_CPU_ISA": "AVX2"}, 78, "does not multiply bfloat16"),
    ("the reference device", ["--bf16", "--device", "reference"], {}, 64, "--bf16: expected"),
])
def what_cannot_be_is_refused_in_one_line(words, environment, code, text):
    result = harness("run", *WINE, *words, env=environment)
    expect_equal(result.code, code, "exit code", result)
    expect_equal(len(result.lines()), 1, "lines on stderr", result)
    expect(text in result.err, result)


main()
