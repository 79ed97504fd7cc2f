# One word for everything. `make help` lists the targets.
BUILD   ?= build/release
PREFIX  ?= /usr/local
JOBS    ?= $(shell nproc)
CACHE   ?= $(or $(TESSERA_CACHE),$(HOME)/.cache/tessera)
TESSERA  = $(BUILD)/bin/tessera

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-fast docs docs-tables reference asan sanitize sanitize-tensors install package fuzz bench format clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | column -t -s "$$(printf '\t')"

setup: ## installs what is missing (apt packages, libtorch); safe to repeat
	@scripts/setup.sh

build: setup ## builds the programs and the tests
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: ## set-up, build, then a real checkpoint speaks and a small decoder trains
	@scripts/setup.sh demo
	@cmake --preset release -B $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target tessera
	@BUILD=$(BUILD) TESSERA_CACHE=$(CACHE) scripts/demo.sh

test: build ## builds and passes all tests
	@scripts/setup.sh demo minilm tensorboard docs package
	@scripts/test.sh $(BUILD)

test-fast: ## the torch-free layers only: seconds
	@cmake -S . -B build/plain -G Ninja -DTESSERA_TENSORS=OFF >/dev/null
	@cmake --build build/plain -j $(JOBS)
	@scripts/test.sh build/plain

docs: ## the site of the documentation, in build/site (open index.html)
	@scripts/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 $(CACHE)/docs/bin/python -m mkdocs build --strict -d build/site
	@echo build/site/index.html

docs-tables: ## writes the tables of options, recipe keys and request fields into the pages
	@cmake --build $(BUILD) -j $(JOBS) --target tessera >/dev/null
	@$(TESSERA) docs --out docs --tables

reference: ## the tests that compare with the Python reference libraries, live (5.6 GB once)
	@scripts/setup.sh reference
	@TESSERA_REFERENCE_PYTHON=$(CACHE)/reference/bin/python TESSERA_REQUIRE_REFERENCE=1 $(MAKE) --no-print-directory test

asan: ## the torch-free tests under the address and undefined behaviour sanitizers
	@cmake --preset asan >/dev/null
	@cmake --build build/asan -j $(JOBS)
	@scripts/test.sh build/asan

sanitize: ## the server with many and with bad clients, under the sanitizers for threads and for memory
	@scripts/sanitize.sh

sanitize-tensors: ## ops, nn, model, infer and train under the sanitizers for addresses, leaks and undefined behaviour
	@scripts/sanitize_tensors.sh

install: build ## commands, library, headers, man pages and completion into PREFIX (/usr/local)
	@cmake --build $(BUILD) --target man 2>/dev/null || true
	@cmake --install $(BUILD) --prefix $(PREFIX)

package: build ## a Python wheel and a Debian package, in build/package
	@scripts/setup.sh package
	@scripts/package.sh $(BUILD) $(CACHE)/package/bin/python build/package
	@scripts/package_deb.sh $(BUILD) build/package

fuzz: ## each fuzz target for a minute (SECONDS=n for longer)
	@scripts/setup.sh fuzz
	@tests/fuzz/run.sh $(or $(SECONDS),60)

bench: ## the benchmarks of kernels and the training step
	@cmake --preset release -B $(BUILD) -DTESSERA_BENCH=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@bench/run.sh $(BUILD)

format: ## clang-format over the sources
	@find src tests bench examples -name '*.h' -o -name '*.cpp' | xargs clang-format -i

clean: ## removes the build folders
	@rm -rf build
