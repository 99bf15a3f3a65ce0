# A thin front: what each target does stands in CMakeLists.txt, tests/check.sh and .ci/.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
HARNESS = $(BUILD)/bin/harness

.PHONY: help deps deps-data deps-check build demo check check-all bench format install clean

help:
	@echo "make demo       install what is missing, build, train ResNet-18 on Fashion-MNIST with both engines"
	@echo "make check      install what is missing, build, run every test (under 20 minutes on 2 cores)"
	@echo "make check-all  the longer tests too"
	@echo "make build      $(HARNESS)"
	@echo "make bench      comparisons with peers, as far as they are installed"
	@echo "make deps       install the Debian packages that the build needs"
	@echo "make format     clang-format over all sources"
	@echo "make install    into PREFIX ($(PREFIX))"

deps:
	@sh .ci/install-packages.sh build

deps-data:
	@sh .ci/install-packages.sh build data

deps-check:
	@sh .ci/install-packages.sh build data check

build: deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_OPTIONS) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: deps-data
	@$(MAKE) --no-print-directory build
	$(HARNESS) --gpus 4 --model resnet18 --data fashion-mnist --batch 16 --steps 40 --optimizer sgd --lr 0.01 \
	  --momentum 0.5 --policy ps=sync,ring=ddp

check: deps-check
	@bash tests/check.sh

check-all: deps-check
	@bash tests/check.sh --all

bench: deps-check
	@$(MAKE) --no-print-directory build
	@bash tests/bench/run.sh

format:
	@git ls-files '*.c' '*.h' '*.cu' | xargs clang-format -i

install: build
	@cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) build-asan build-tsan build-fuzz
