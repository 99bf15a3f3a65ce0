"""The container of the labs, built from labs/Dockerfile without an engine."""
import json
import os
import shutil
import tempfile

from container import build, instructions, walk
from labs import SOURCE, read
from tap import expect_equal, long_test, main, test


@test
def editors_open_the_same_container():
    configuration = json.loads(read(SOURCE, ".devcontainer/devcontainer.json"))
    of = os.path.join(SOURCE, ".devcontainer")
    found = [os.path.realpath(os.path.join(of, configuration["build"][key])) for key in ("dockerfile", "context")]
    expect_equal(found, [os.path.realpath(os.path.join(SOURCE, "labs/Dockerfile")), os.path.realpath(SOURCE)], "files")
    expect_equal(configuration["remoteUser"], [rest for word, rest in instructions() if word == "USER"][-1], "the user")


@long_test
def the_image_is_built_and_a_student_solves_a_lab_in_it():
    with tempfile.TemporaryDirectory(prefix="container-") as folder:
        root, where, user = build(folder)
        walk(root, where, user)
        mounted = os.path.join(root, "mounted")  # by --user and -v: a user of the host, who has no name in the image
        os.mkdir(mounted)
        os.chown(mounted, 4321, 4321)
        walk(root, "/mounted", "4321:4321")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
