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


def without_ranges(name, base, **changes):
    """A profile with the best value of every constant of another profile, and no ranges. `changes` has, for some
    constants, the keys to set: socket_link={"value": 10} or socket_link={"range": [9, 11]}."""
    folder, exact, of = os.path.join(os.environ.get("SOURCE_DIR", os.getcwd()), "common/sim/profiles"), {}, base
    while of:
        with open(os.path.join(folder, of + ".json"), encoding="utf-8") as file:
            content = json.load(file)
        for key, constant in content["constants"].items():
            exact.setdefault(key, {"value": constant["value"], "unit": constant["unit"], "tag": "published", "source": "a test"})
        of = content.get("base")
    for key, change in changes.items():
        exact[key].update(change)
    return profile(name, base=base, constants=exact)


def run(*words):
    return ("run", "--mode", "ring", "--model", "lenet", "--steps", "2", "--warmup", "1", *words)


def length(policy):
    """The numbers of steps of whatif: more if ranks do not wait for each other."""
    return ("--warmup", "20", "--steps", "20") if policy.startswith(("ssp", "async")) else ("--warmup", "2", "--steps", "3")
