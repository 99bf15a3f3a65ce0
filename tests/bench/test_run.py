"""Every benchmark of run.sh that needs no other program runs, and records what it found with its provenance."""
import json
import os
import subprocess
import tempfile

import provenance
from program import BUILD
from tap import expect, expect_equal, long_cases, main

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.sh")


@long_cases([(group, group, file) for group, file in (
    ("messages", "messages"), ("curve", "curve"), ("trace", "trace"), ("sim", "sim-scale"), ("link", "link-overlap"),
    ("binding", "binding"), ("neighbor", "neighbor"), ("predict", "predict"), ("reproduce", "reproduce/throughput"))])
def a_benchmark_records_its_figures_with_their_provenance(group, file):
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        done = subprocess.run(["bash", RUN, "--quick", group], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              universal_newlines=True, env=dict(os.environ, BUILD=BUILD, RESULTS=folder))
        path = os.path.join(folder, file + ".json")
        expect(done.returncode == 0 and os.path.exists(path), done.stdout)
        with open(path, encoding="utf-8") as stream:
            where = json.load(stream)["provenance"]
    expect_equal(sorted(where), sorted(provenance.FIELDS), "keys")
    expect(where["rounds"] >= 1, where)


main()
