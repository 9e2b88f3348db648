# Thin over meson: each target is the one command that a user or a machine needs, nothing is built here.
#
#   make run [ARGS="--listen 127.0.0.1:18080"]   set up, build, serve the bundled model
#   make test                                    set up, build, run every test
#   make help                                    the rest

BUILD     ?= build
MODEL     ?= models/evenkeel-demo.gguf
ARGS      ?=
PREFIX    ?= /usr/local
FUZZ_SECONDS ?= 60
MODEL_WORK ?= training

# Debian's own tools first: python3-numpy, which the test models need, belongs to /usr/bin/python3.
export PATH := /usr/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help run test build setup check format docs docs-check calibration fuzz install clean model model-eval

help:
	@echo "make run          install what is missing, build, serve $(MODEL) on 127.0.0.1:8080 (ARGS=...)"
	@echo "make test         install what is missing, build, run every test"
	@echo "make build        build to $(BUILD)/evenkeel"
	@echo "make check        layers, purity, style, lint, docs"
	@echo "make format       clang-format and comment width over every C file"
	@echo "make docs         write the generated pages (docs/CONFIG.md)"
	@echo "make docs-check   do what the docs say and compare"
	@echo "make calibration  show and check what calibrate does to the bundled model (a quarter of an hour)"
	@echo "make fuzz         each fuzzer for FUZZ_SECONDS (now $(FUZZ_SECONDS))"
	@echo "make model        train the bundled model anew in $(MODEL_WORK) (docs/MODEL.md); goes on where it was stopped"
	@echo "make model-eval   ask $(MODEL) 500 questions and count the right answers"
	@echo "make install      to PREFIX (now $(PREFIX)), DESTDIR is honoured"
	@echo "make clean        remove every build directory"

run: setup-build $(BUILD)/build.ninja
	@meson compile -C $(BUILD) evenkeel:executable
	exec $(BUILD)/evenkeel serve --model $(MODEL) $(ARGS)

test: setup-test $(BUILD)/tests-enabled build
	@python3 tools/run_tests.py $(BUILD)

# A folder that was configured before cmocka was there has no tests in it yet.
$(BUILD)/tests-enabled: | $(BUILD)/build.ninja
	@meson configure $(BUILD) -Dtests=enabled
	@touch $@

setup: setup-build

setup-%:
	@tools/setup.sh build $*

build: $(BUILD)/build.ninja
	@meson compile -C $(BUILD)

$(BUILD)/build.ninja:
	@command -v meson >/dev/null || { echo "meson is missing: run 'make setup' first" >&2; exit 1; }
	meson setup $(BUILD) --prefix $(PREFIX)

check: setup-check build
	@tools/check.sh $(BUILD)

format:
	@git ls-files '*.c' '*.h' | xargs python3 tools/wrap_comments.py
	@git ls-files '*.c' '*.h' | xargs clang-format-14 -i

docs: build
	$(BUILD)/evenkeel config reference > docs/CONFIG.md

docs-check: build
	@python3 tools/check_docs.py $(BUILD)

calibration: setup-test build
	@python3 tools/demo_calibration.py $(BUILD)

fuzz: setup-fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS)

model: setup-model
	@python3 tools/model/build.py --work $(MODEL_WORK)

model-eval: setup-build build
	@python3 tools/model/evaluate.py $(MODEL) --program $(BUILD)/evenkeel

install: build
	meson install -C $(BUILD)

clean:
	rm -rf build build-*
