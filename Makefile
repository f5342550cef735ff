# Every task of the project. `make` alone prints what there is.
# Only Python 3.10 to 3.13 and make are needed; all else is installed into .venv by `make setup`.

PYTHON ?= python3
BIN := .venv/bin
PROTO_BIN := .venv-proto/bin
PROTOS := gradserve/v1/tensor.proto gradserve/v1/op.proto gradserve/v1/gradient_service.proto
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types breaking format proto cpp-op client-environments bench soak lock clean

help: ## Print this text
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-22s %s\n", $$1, $$2}'

setup: .venv/ready .venv-proto/ready ## Install everything, pinned and hashed, into .venv and .venv-proto

demo: .venv/ready ## Start a server on loopback, evaluate the example ops through the client, print, stop
	@$(BIN)/python examples/demo.py

test: setup ## Run all tests
	$(BIN)/pytest

check: lint types breaking ## Run all checks that are not tests

lint: .venv/ready ## Check style and format of code and proto files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto

types: .venv/ready ## Check types, strictly
	$(BIN)/mypy

breaking: .venv/ready ## Compare the wire contract with the last commit
	tools/check-breaking $(BIN)/buf

format: .venv/ready ## Format code and proto files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format --write proto

proto: .venv-proto/ready ## Generate client/gradserve/v1 from proto/
	$(PROTO_BIN)/python -m grpc_tools.protoc -Iproto --python_out=client --pyi_out=client $(PROTOS)

cpp-op: .venv/ready ## Build the compiled example op with g++
	$(BIN)/python examples/cpp_op/build.py

client-environments: .venv/ready ## Call a server from clients with the lowest and the highest allowed versions
	tools/client-environments $(BIN)

bench: .venv/ready ## Run all benchmarks, which takes about half an hour, and draw benchmarks/against_echo.png
	$(BIN)/python benchmarks/against_echo.py --json .against_echo.json
	$(BIN)/python benchmarks/plot.py .against_echo.json
	@for name in vjp_vs_echo stages batch_size mixed_load health_beside_large beside_slow hosted_ops; do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

soak: .venv/ready ## Run at full size what `make test` runs small: random ops, calls joined at random, random shapes
	$(BIN)/python -W ignore -m tests.support.random_ops 400
	$(BIN)/python -W ignore -m tests.support.random_batches 10000
	$(BIN)/python -W ignore -m tests.support.random_shapes 100000

lock: .venv/ready ## Pin all requirements anew
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
		--custom-compile-command "make lock" --no-emit-index-url --no-emit-find-links \
		--extra server --extra plot --extra dev -o requirements/dev.txt pyproject.toml requirements/build.in requirements/pins.in
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes \
		--custom-compile-command "make lock" --no-emit-index-url --no-emit-find-links \
		-o requirements/proto.txt requirements/proto.in

clean: ## Remove everything that was installed or cached
	rm -rf .venv .venv-proto .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: requirements/dev.txt pyproject.toml
	@echo "Installing TensorFlow and all else into .venv; this takes a minute or two."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv-proto/ready: requirements/proto.txt
	@$(PYTHON) -m venv .venv-proto
	@$(PROTO_BIN)/python -m pip install --quiet --require-hashes -r requirements/proto.txt
	@touch $@
