"""What `make demo` does once everything is installed and built: the verdict, and a page with the real and the virtual run."""
import json
import os
import re
import subprocess
import tempfile

from browser import Browser
from images import few_clothes
from program import PROGRAM, SLOWER, harness
from tap import expect, expect_equal, main, test

SOURCE = os.environ.get("SOURCE_DIR") or os.getcwd()


@test
def it_ends_with_the_verdict_and_the_path_of_a_page_that_answers_the_question():
    with tempfile.TemporaryDirectory(prefix="demo-test-") as build:
        done = subprocess.run(["make", "--no-print-directory", "-C", SOURCE, "demo-run", f"BUILD={build}", f"HARNESS={PROGRAM}", "DEMO_STEPS=6",
                               f"DEMO_DATA={few_clothes()}"], capture_output=True, text=True, timeout=900 * SLOWER, check=False)
        expect_equal(done.returncode, 0, "exit code", done.stdout[-2000:], done.stderr[-2000:])
        *lines, last = done.stdout.rstrip().splitlines()
        page = last.split(": ")[-1]
        expect_equal(page, os.path.join(os.path.realpath(build), "report.html"), "the path in the last line")
        verdict = lines[-12:]
        for part in ("Equal parameters, ", "One process on all cores ", "A step of ", "Memory: ", "Next: "):
            expect(any(line.startswith(part) for line in verdict), f"{part!r} in the last ten lines", verdict)
        expect(any(line.startswith("In this run ") for line in verdict), "which is faster", verdict)
        with open(os.path.join(build, "demo.json"), encoding="utf-8") as file:
            real = json.load(file)
        ranks = harness("--mode", "ring", "--model", "toy", "--steps", "1", "--json", "-").jobs()["ring"]["world_size"]  # one per core
        expect_equal([(job["name"], job["world_size"]) for job in real["jobs"]],
                     [("none", 1), ("all-cores", 1), ("isolated", ranks), ("ps", ranks), ("ring", ranks)], "jobs of the real run, and their ranks")
        with Browser() as browser:
            browser.open(page)
            expect_equal(browser.complaints(), [], "console and requests")
            sections = browser.evaluate("""Array.from(document.querySelectorAll('section')).map(s => [s.querySelector('h1, h2').textContent,
              s.querySelector('.workload').textContent, s.querySelectorAll('svg.wide .mark').length,
              Array.from(s.querySelectorAll('figure[id$=throughput] tbody th')).map(e => e.textContent),
              Array.from(s.querySelectorAll('figure[id$=memory] tbody tr')).map(r => Array.from(r.children).map(c => c.textContent))])""")
        expect_equal(len(sections), 2, "the real run and the virtual one", sections)
        real, virtual = sections
        expect("resnet18" in real[1] and "resnet50" in virtual[1], "the models", sections)
        expect(real[2] == 0 and virtual[2] >= 4, "only the virtual figures are marked", sections)
        expect_equal(virtual[3], ["none", "ps (dp)", "ring (ddp)", "ps (sync, 8 servers)"], "throughput of dp, ring and a sharded parameter server")
        memory = {row[0] for row in virtual[4]}
        expect({"ps (dp)", "ring (ddp)", "ps (sync, 8 servers)"} <= memory, "memory of each", virtual[4])
        expect(any(re.fullmatch(r"(0|1)–7", row[1]) for row in virtual[4]), "8 ranks", virtual[4])


main()
