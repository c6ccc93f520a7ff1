# Thin targets over CMake: `make demo` runs the main job on real text, `make test` passes the tests.
BIN := build/release/bin/longhaul

.PHONY: all build demo test again torture lint peers fuzz format docs clean packages

all: build

packages:
	@scripts/packages

build: packages
	@mkdir -p build
	@cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build --preset release

# The program and its plugins; `make build` builds the tests, too.
demo: packages
	@mkdir -p build
	@cmake --preset release > build/configure.log 2>&1 || { cat build/configure.log; exit 1; }
	@cmake --build --preset release --target product
	@scripts/demo

test: packages
	@scripts/test

# `make test` RUNS (10) times in a row beside processes that compute, where no test may fail even once; RUNS=1, again and again, is as good.
again: packages
	@scripts/again $(or $(RUNS),10)

# Every long list whole; AREA=comm: those of one area, see tests/areas; AREA=hours: what takes hours by itself; AREA=lab.goodput.far: a test.
# AREA=races: layouts of ranks on a device that works off queues, under TSan.
torture: packages
	@AREA=$(AREA) scripts/test --torture

lint: packages
	@tests/lint/run

# Every parser against inputs made by libFuzzer: make fuzz SECONDS=1800 KEEP=1
fuzz: packages
	@scripts/fuzz $(or $(SECONDS),60)

# PyTorch and the other peers, for comparisons; large, and only used by tests where it is there.
peers: packages
	@scripts/peers

format:
	@git ls-files '*.c' '*.h' | grep -v '^vendor/' | xargs clang-format -i

# Pages that are made of the program's own tables.
docs: build
	@python3 tests/docs/ops_page.py . build/release --write

clean:
	rm -rf build out
