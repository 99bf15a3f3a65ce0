# A thin front: CMakeLists.txt, tests/check.sh and .ci/ say what each target does.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
HARNESS = $(BUILD)/bin/harness
# A build folder that is there keeps its settings unless PRESET (CMakePresets.json) is given.
PRESET ?= $(if $(wildcard $(BUILD)/CMakeCache.txt),,user)
DEMO_STEPS = 40
DEMO_DATA = fashion-mnist
DEMO_VIRTUAL = --device sim:dgx1-v100 --gpus 8 --model resnet50 --batch 32 --steps 8
CONFIGURE = cmake -S . -B $(BUILD) $(PRESET:%=--preset %) -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_OPTIONS) >/dev/null
COMPILE = cmake --build $(BUILD) -j $(JOBS) --target

.PHONY: help deps deps-data deps-check build demo demo-run test check check-more check-all bench uninstall deb readme-example format install clean

help:
	@echo "make demo         install what is missing, build the program, train ResNet-18 on Fashion-MNIST with both engines"
	@echo "make check        install what is missing, build, run the tests of every change (8 minutes on 2 cores)"
	@echo "make check-more   run what CI runs after those: sanitizers, fuzzers, emulated GPUs, every option (22 minutes)"
	@echo "make check-all    run every test: those of make check and check-more, and the longer ones"
	@echo "make test T=NAME  build and run a test, those that a regular expression matches, or those of a folder of tests/"
	@echo "make build        build $(HARNESS) and the modules that it opens (CUDA, MPI)"
	@echo "make bench        compare with other programs that are installed; results/README.md lists what it records"
	@echo "make readme-example  run README's example again and record it"
	@echo "make deps         install the Debian packages that the build needs"
	@echo "make format       run clang-format over all sources"
	@echo "make install      install into PREFIX ($(PREFIX)); make uninstall removes that"
	@echo "make deb          build a Debian package: build-deb/psring_VERSION_ARCHITECTURE.deb"

deps:
	@sh .ci/install-packages.sh build

deps-data:
	@sh .ci/install-packages.sh build data

deps-check:
	@sh .ci/install-packages.sh build data check

build: deps
	@$(CONFIGURE)
	@$(COMPILE) program

# The modules are built only where there is a GPU.
demo: deps-data
	@echo "building $(HARNESS): about a minute on 2 cores"
	@$(CONFIGURE)
	@$(COMPILE) $$([ -e /dev/nvidiactl ] && echo program || echo harness)
	@echo "training for $(DEMO_STEPS) steps, five times in turns: one rank without communication (none), once on its share of the cores"
	@echo "and once on all; a rank for each core without exchange (isolated), with a parameter server (ps), and with a ring all-reduce (ring);"
	@echo "docs/tutorial.md explains the result and what to try next"
	@$(MAKE) --no-print-directory demo-run

# What demo does once everything is there.
demo-run:
	@$(HARNESS) run $(DEMO_VIRTUAL) --policy ps=dp,ring=ddp --quiet --json $(BUILD)/demo-8-gpus.json >/dev/null
	@$(HARNESS) run $(DEMO_VIRTUAL) --mode ps --policy sync --servers 8 --quiet --json $(BUILD)/demo-8-servers.json >/dev/null
	$(HARNESS) --model resnet18 --data $(DEMO_DATA) --batch 16 --steps $(DEMO_STEPS) --optimizer sgd --lr 0.01 \
	  --momentum 0.5 --policy ps=sync,ring=ddp --json $(BUILD)/demo.json
	@$(HARNESS) report $(BUILD)/demo.json $(BUILD)/demo-8-gpus.json $(BUILD)/demo-8-servers.json -o $(BUILD)/report.html
	@echo "figures, and next to them ResNet-50 on 8 virtual V100s: $(abspath $(BUILD))/report.html"

test: deps-check
	@$(CONFIGURE)
	@BUILD=$(BUILD) JOBS=$(JOBS) sh tests/test.sh '$(T)'

check: deps-check
	@bash tests/check.sh check

check-more: deps-check
	@bash tests/check.sh more

check-all: deps-check
	@sh .ci/install-packages.sh long
	@bash tests/check.sh check more all

readme-example: deps-data
	@$(CONFIGURE)
	@$(COMPILE) harness
	@python3 tests/bench/readme.py --harness $(HARNESS)

bench: deps-check
	@$(CONFIGURE)
	@$(COMPILE) all
	@bash tests/bench/run.sh

format:
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format -i

install: build
	@cmake --build $(BUILD) --target manual_pages 2>/dev/null || true
	@cmake --install $(BUILD) --strip

uninstall:
	@[ -f $(BUILD)/install_manifest.txt ] || { echo "make: uninstall: expected $(BUILD)/install_manifest.txt, which make install writes" >&2; exit 2; }
	@while read -r file || [ -n "$$file" ]; do rm -f "$$file"; done <$(BUILD)/install_manifest.txt

# A build of its own, for /usr; the package is in build-deb/.
deb: deps
	@cmake -S . -B build-deb -G Ninja -DCMAKE_INSTALL_PREFIX=/usr $(CMAKE_OPTIONS) >/dev/null
	@cmake --build build-deb -j $(JOBS) --target program manual_pages
	@cd build-deb && cpack -G DEB

clean:
	rm -rf $(BUILD) build-asan build-tsan build-fuzz build-deb
