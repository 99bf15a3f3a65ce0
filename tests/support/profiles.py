"""Virtual time in tests: profiles of one's own, and a short run."""
import json
import os
import tempfile

FILES = tempfile.TemporaryDirectory(prefix="profiles-")


def profile(name, **changes):
    path = os.path.join(FILES.name, name + ".json")
    content = {"profile": name, "summary": "a test", "base": "v100-pcie-32g", "constants": {}}
    content.update(changes)
    with open(path, "w") as file:
        json.dump(content, file)
    return path


def run(*words):
    return ("run", "--mode", "ring", "--model", "lenet", "--steps", "2", "--warmup", "1", *words)
