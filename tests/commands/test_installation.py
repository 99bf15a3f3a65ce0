"""What `make install` and `make deb` leave: the program under both names, pages, completion."""
import fcntl
import glob
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import tempfile
import termios
import time

from program import BUILD, PROGRAM
from tap import Skip, expect, expect_equal, long_test, main, test

SOURCE = os.environ.get("SOURCE_DIR") or os.getcwd()
COMPLETION = os.path.join(SOURCE, "common", "build", "completion", "psring.bash")


def output(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=300, **more).stdout


def commands():
    text = output(PROGRAM, "--help").split("commands:\n", 1)[1].split("\n\n", 1)[0]
    return [line.split()[0] for line in text.splitlines()]


def completed(*words):
    """The words that bash offers for the last of `words`."""
    script = f'source "{COMPLETION}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _psring; printf "%s\\n" "${{COMPREPLY[@]}}"'
    return output("bash", "-c", script, "bash", PROGRAM, *words).split()


def check_labs(prefix, folder):
    """A student who is not root starts and checks a lab, in a folder of their own, with what is installed."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    mine = os.path.join(folder, "a student's ü")
    os.mkdir(mine)
    os.chmod(mine, 0o777)
    os.chmod(folder, 0o755)
    with open(os.path.join(prefix, "share", "psring", "labs", "1-count-bytes", "count.c"), "a", encoding="utf-8") as file:
        file.write("/* installed */\n")
    lab = [*user, os.path.join(prefix, "bin", "psring"), "lab"]
    output(*lab, "start", "1", cwd=mine)
    with open(os.path.join(mine, "1-count-bytes", "count.c"), encoding="utf-8") as file:
        expect("/* installed */" in file.read(), "the starter files are those of the installation")
    done = subprocess.run([*lab, "check", "1", "-k", "compiles,ring"], cwd=mine, capture_output=True, text=True, timeout=300)
    expect(done.returncode == 1 and "has not been written yet" in done.stdout and "OK" in done.stdout, "the check", done.stdout, done.stderr)


@test
def an_installation_runs_under_both_names_from_any_folder_and_is_removed_again():
    with tempfile.TemporaryDirectory(prefix="install-test-") as folder:
        prefix = os.path.join(folder, "a path with spaces and ü")
        manifest = os.path.join(BUILD, "install_manifest.txt")
        output("cmake", "--install", BUILD, "--prefix", prefix, "--strip")
        with open(manifest, encoding="utf-8") as file:
            installed = file.read().splitlines()
        try:
            for name in ("harness", "psring"):
                program = os.path.join(prefix, "bin", name)
                expect_equal(output(program, "--version", cwd=folder), output(PROGRAM, "--version"), f"version of {name}")
                expect("resnet18" in output(program, "models", cwd=folder), f"models of {name}")
            sections = output("readelf", "-S", os.path.join(prefix, "bin", "harness"))
            expect(".debug_info" not in sections, "the program is stripped", sections)
            golden = glob.glob(os.path.join(prefix, "share", "psring", "golden", "*.json"))
            expect(len(golden) >= 20, f"golden files: {golden}")
            schemas = os.listdir(os.path.join(prefix, "share", "psring", "schemas"))
            expect("run.schema.json" in schemas and len(schemas) >= 11, f"schemas: {schemas}")
            for path in ("zsh/site-functions/_psring", "bash-completion/completions/harness", "bash-completion/completions/psring"):
                expect(os.path.isfile(os.path.join(prefix, "share", path)), f"{path} is installed")
            readme = os.path.join(prefix, "share", "doc", "psring", "README.md")
            with open(readme, encoding="utf-8") as file:
                images = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", file.read())
            expect(len(images) >= 2, f"images of the README: {images}")
            for image in images:
                expect(os.path.isfile(os.path.join(os.path.dirname(readme), image)), f"{image} of the README is installed")
            check_labs(prefix, folder)
            verified = output(os.path.join(prefix, "bin", "psring"), "verify", os.path.join(os.path.dirname(golden[0]), "toy_w1.json"))
            expect("toy_w1" in verified, "a golden file", verified)
            for path in installed:
                expect(os.path.lexists(path), f"{path} of the list of installed files exists")
            output("make", "-C", SOURCE, "uninstall", f"BUILD={os.path.abspath(BUILD)}")
            left = [os.path.join(at, name) for at, _, names in os.walk(prefix) for name in names]
            expect_equal(left, [], "files after make uninstall")
        finally:
            if os.path.exists(manifest):
                os.remove(manifest)


@test
def bash_completes_every_command_option_and_choice():
    expect_equal(sorted(completed("")), sorted(commands()), "commands")
    expect_equal(completed("run", "--mode", "r"), ["ring"], "choices")
    expect_equal(completed("run", "--model", "resnet1"), ["resnet18", "resnet101", "resnet152"], "models")
    expect("sim:dgx1-v100" in completed("--gpus", "2", "--device", "sim:"), "devices")
    expect("ssp" in completed("run", "--policy", "s"), "policies")
    expect_equal(completed("help", "wha"), ["whatif"], "commands after help")
    for command in commands():
        text = output(PROGRAM, command, "--help=all")
        options = re.findall(r"^  (?:-\w, )?(--[a-z][\w-]*)", text, re.MULTILINE)
        if command == "sweep":  # it has those of run, but for what all runs would write to one file
            of_run = re.findall(r"^  (?:-\w, )?(--[a-z][\w-]*)", output(PROGRAM, "run", "--help=all"), re.MULTILINE)
            expect("--bucket-cap-mb" in of_run and "--json" in of_run, "options of run", of_run)
            options += [name for name in of_run if name not in ("--json", "--report", "--trace", "--save", "--plan")]
        found = completed(command, "--")
        expect_equal(sorted(found), sorted(set(options)), f"options of {command}")
    expect_equal(completed("sweep", "--model", "resnet1"), ["resnet18", "resnet101", "resnet152"], "models of a sweep")
    expect_equal(completed("sweep", "--vary", "bucket-c"), ["bucket-cap-mb="], "what a sweep varies")
    expect_equal(completed("compare", "--builds", "a", "b", "-o", "c", "--", "--bucket-c"), ["--bucket-cap-mb"], "options of compare --builds")
    expect_equal(completed("compare", "--bucket-c"), [], "options of compare")


class Zsh:
    """An interactive zsh at a terminal of 50 lines of 200 columns, with the program and its completion and no other settings."""

    # Ctrl-X shows the line and clears it.
    SETTINGS = """PS1='ready: '; PATH={folder}:$PATH; fpath=({functions} $fpath); cd {folder}
autoload -U compinit; compinit -D -u; setopt no_list_beep no_beep; LISTMAX=1000; bindkey -e
show() {{ local line=$BUFFER; BUFFER=; zle -I; print -r -- "<<<$line>>>" }}; zle -N show; bindkey '^X' show
"""

    def __init__(self, functions):
        if not shutil.which("zsh"):
            raise Skip("zsh is not installed")
        self.folder = tempfile.mkdtemp(prefix="zsh-test-")
        for name in ("harness", "psring"):
            os.symlink(PROGRAM, os.path.join(self.folder, name))
        with open(os.path.join(self.folder, ".zshrc"), "w", encoding="utf-8") as file:
            file.write(self.SETTINGS.format(functions=functions, folder=self.folder))
        self.terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.process = subprocess.Popen(["zsh", "-d", "-i"], stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
                                        env={**os.environ, "ZDOTDIR": self.folder, "TERM": "dumb"})
        os.close(inside)
        self.until("ready: ")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
        shutil.rmtree(self.folder, ignore_errors=True)

    def until(self, end):
        """What the shell writes until `end`."""
        text, limit = "", time.monotonic() + 120
        while end not in text:
            ready, _, _ = select.select([self.terminal], [], [], max(0, limit - time.monotonic()))
            expect(ready, f"expected {end!r}", text)
            text += os.read(self.terminal, 1 << 16).decode("utf-8", "replace")
        return text

    def tab(self, line):
        """The line after the Tab key, and what was listed."""
        os.write(self.terminal, line.encode() + b"\t\x18")
        text = self.until(">>>")
        listed, _, found = text.rpartition("<<<")
        return found.partition(">>>")[0], listed


@long_test
def zsh_completes_a_line():
    with Zsh(os.path.dirname(COMPLETION)) as zsh:
        for line, expected in (("harness ru", "harness run "), ("psring wha", "psring whatif "), ("harness help swe", "harness help sweep "),
                               ("harness sweep --va", "harness sweep --vary="), ("harness run --bucket-c", "harness run --bucket-cap-mb="),
                               ("harness --bucket-c", "harness --bucket-cap-mb="), ("harness run --qui", "harness run --quiet "),
                               ("harness run --mode ri", "harness run --mode ring "), ("harness run --mode=ri", "harness run --mode=ring "),
                               ("harness run --model resnet15", "harness run --model resnet152 "), ("harness sweep --model=resnet15", "harness sweep --model=resnet152 "),
                               ("harness run --device sim:dgx1-v100-4x", "harness run --device sim:dgx1-v100-4xib100 "), ("harness run --policy ss", "harness run --policy ssp "),
                               ("harness run --policy ps=dp,ring=ape", "harness run --policy ps=dp,ring=apex "),
                               ("harness sweep --vary bucket-c", "harness sweep --vary bucket-cap-mb="), ("harness sweep --vary mode=ps,ri", "harness sweep --vary mode=ps,ring"),
                               ("harness sweep --vary=bucket-view=no,y", "harness sweep --vary=bucket-view=no,yes"),
                               ("harness sweep --mode ps,ri", "harness sweep --mode ps,ring,"), ("harness sweep --vary model=lenet,resnet15", "harness sweep --vary model=lenet,resnet152 "), ("harness sweep --json", "harness sweep --json"), ("harness compare --builds a b -o c -- --bucket-c",
                                                                                  "harness compare --builds a b -o c -- --bucket-cap-mb=")):
            found, listed = zsh.tab(line)
            expect_equal(found, expected, repr(line), listed)
        found, listed = zsh.tab("harness ")
        for command in commands():
            expect(re.search(rf"\b{command} +-- \w", listed), f"expected {command} and what it does in the list", listed)
        found, listed = zsh.tab("harness run --bucket-")
        expect(re.search(r"--bucket-cap-mb +-- \w", listed), "options with their help", listed)


@test
def every_command_has_a_manual_page():
    if not shutil.which("help2man"):
        raise Skip("help2man is not installed")
    with tempfile.TemporaryDirectory(prefix="man-test-") as folder:
        output("sh", os.path.join(SOURCE, "common", "build", "manual-pages.sh"), PROGRAM, folder)
        names = {"harness", "psring"} | {f"{name}-{command}" for name in ("harness", "psring") for command in commands()}
        expect_equal(set(os.listdir(folder)), {f"{name}.1.gz" for name in names}, "pages")
        text = output("zcat", os.path.join(folder, "harness-run.1.gz"))
        for part in (r"\-\-bucket\-cap\-mb", r"\-\-mode", ".SH NAME"):
            expect(part in text, f"expected {part!r} in the page of run")


@long_test
def the_debian_package_has_no_errors():
    for tool in ("lintian", "cpack", "help2man"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="deb-test-") as folder:
        tree = os.path.join(folder, "tree")
        output("git", "clone", "-q", SOURCE, tree)
        output("make", "deb", "CMAKE_OPTIONS=-DPSRING_CUDA=OFF", cwd=tree)
        package = glob.glob(os.path.join(tree, "build-deb", "*.deb"))
        expect_equal(len(package), 1, "packages")
        found = subprocess.run(["lintian", "--fail-on", "error", package[0]], capture_output=True, text=True, check=False)
        expect_equal(found.returncode, 0, "lintian", found.stdout)
        expect_equal("E: " in found.stdout, False, "errors", found.stdout)
        files = output("dpkg-deb", "--contents", package[0])
        for path in ("zsh/vendor-completions/_psring", "bash-completion/completions/psring", "man/man1/psring-sweep.1.gz", "psring/schemas/run.schema.json"):
            expect(f"./usr/share/{path}\n" in files, f"{path} is in the package", files)


main()
