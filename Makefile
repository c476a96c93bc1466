# `make help` lists what there is to make.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
GO ?= go
FUZZTIME ?= 10s
# The version is written in the chart, deploy/helm/meshcni/Chart.yaml; every file of a release has it from there.
# Where the image and the chart are pulled from, a host and perhaps a path. Empty: an image to import, a chart that asks for one.
REGISTRY ?=
export PATH := $(CURDIR)/.cache/bin:$(PATH):/usr/sbin:/sbin

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build the programs, static, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/ ./cmd/... ./migrate/...

.PHONY: playground
playground: ## The page that explains a pod, built from its sources and served on loopback
	@.ci/needs playground
	npm --prefix playground ci
	node playground/build.mjs --serve

.PHONY: playground-test
playground-test: ## The playground's page in headless Chromium
	.ci/playground

.PHONY: demo
demo: ## Redirect a pod-like namespace's traffic on this machine, have running pods join a node's proxy and leave it, and show where each packet went (root on Linux)
	@if [ "$$(id -u)" = 0 ] && [ "$$(uname)" = Linux ]; then .ci/needs && CI=true .ci/leftovers run $(GO) -C cmd/internal/demo test -count=1 -run "^TestDemo$$"; \
	else printf 'To send packets this needs root on Linux: sudo make demo\nUntil then, what the plugin would do with examples/pod.yaml:\n\n' && \
		$(GO) run ./cmd/meshcni-redirect explain -f examples/pod.yaml; fi

.PHONY: cluster
cluster: ## A cluster of one node with this checkout's image and chart, up until interrupted; RUNTIME=containerd|crio, VALUES=file (root on Linux; a quarter of an hour of building the first time)
	@RUNTIME="$(RUNTIME)" VALUES="$(VALUES)" .ci/cluster

.PHONY: demo-envoy
demo-envoy: ## Requests through the real Envoy as a pod's sidecar, and what it saw of each (root on Linux)
	@.ci/needs
	@.ci/envoy
	@CI=true $(GO) -C e2e/envoy test -count=1 -run '^TestDemo$$'

.PHONY: test
test: ## The tests for whoever works here, in five minutes; without root it says what it left out
	@.ci/test

.PHONY: ci
ci: ## Everything CI runs (root on Linux)
	.ci/run

.PHONY: test-race
test-race: ## The tests of packages with goroutines, under the race detector
	.ci/needs
	$(GO) test -race $$(.ci/packages race)

.PHONY: test-long
test-long: ## Go's tests as a whole: every combination, more rounds, full crowds (some forty minutes; root on Linux)
	.ci/needs
	e2e/setup.sh
	.ci/tool helm crane cosign
	.ci/promtool
	CI=true $(GO) test -count=1 -tags long -timeout 60m $$($(GO) list work | grep -vE 'meshcni/e2e/(cluster|cmd|envoy|internal|release|runtime)')
	CI=true $(GO) -C release test -count=1 -tags long -timeout 60m ./...

.PHONY: test-integration
test-integration: ## Repair against a real API server and etcd, which the first run builds (some minutes)
	repair/integration/setup.sh
	CI=true $(GO) test -count=1 ./repair/integration

.PHONY: e2e
e2e: ## The image and the chart on containerd and CRI-O, and on a cluster of one node, and the real Envoy as a sidecar, which the first run builds (some minutes)
	e2e/setup.sh kube-controller-manager kube-scheduler kubelet
	.ci/tool helm krew validate-krew-manifest
	.ci/envoy
	.ci/crio
	CI=true $(GO) -C e2e test -count=1 -v ./cluster ./cmd/cluster ./runtime ./envoy ./release

.PHONY: e2e-long
e2e-long: ## All of that, with the tests that are too long for CI (some forty minutes)
	e2e/setup.sh kube-controller-manager kube-scheduler kubelet
	.ci/tool helm
	.ci/envoy
	.ci/crio
	CI=true $(GO) -C e2e test -count=1 -v -tags long -timeout 60m ./cluster ./cmd/cluster ./runtime ./envoy

.PHONY: difftest-long
difftest-long: ## A hundred thousand real connections under random redirections, compared with the tracer (root on Linux, some twenty minutes)
	.ci/needs
	CI=true MESHCNI_DIFFTEST_REDIRECTS=850 $(GO) test -count=1 -v -timeout 0 -run TestKernelAgrees ./internal/testing/difftest

.PHONY: e2e-newest
e2e-newest: export MESHCNI_E2E_RUNTIME = newest
e2e-newest: e2e ## The same on newer containerd, runc and reference plugins than Debian's

.PHONY: image
image: ## The container image for this machine's architecture, into dist/
	$(GO) -C release run . image --arch $$($(GO) env GOARCH) --registry "$(REGISTRY)"

.PHONY: chart
chart: ## The chart and the plain manifests with REGISTRY in them, into dist/
	$(GO) -C release run . chart --registry "$(REGISTRY)"

.PHONY: release
release: ## All that a release consists of, into dist/, which must be empty: archives, images, chart, manifests, bills of materials, checksums
	$(GO) -C release run . all --registry "$(REGISTRY)"

.PHONY: reproduce
reproduce: ## The same once more from a clone of the commit, compared with the files in DIR
	@clone=$$(mktemp -d) && trap 'rm -rf "$$clone"' EXIT && git clone -q . "$$clone" && \
	$(MAKE) -s -C "$$clone" release REGISTRY="$(REGISTRY)" && diff -r "$$clone/dist" "$(DIR)" && echo "the commit makes the same files"

.PHONY: publish
publish: ## Push the images and the chart in dist/ to the registry that they were made for, and sign them with KEY
	.ci/tool crane helm cosign
	release/publish.sh dist "$(REGISTRY)" "$(KEY)"

.PHONY: manifests
manifests: ## Write deploy/manifests anew from the chart
	.ci/tool helm
	$(GO) test ./e2e/deploy -run Manifests -update

.PHONY: apidiff
apidiff: ## Compare the public packages with the last release's
	for module in $$(.ci/modules --published); do .ci/apidiff $$module; done

.PHONY: vuln
vuln: ## Known vulnerabilities, where their database is in reach
	for module in $$(.ci/modules --published); do .ci/vuln $$module; done

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME each
	@mkdir -p .cache
	.ci/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## Benchmarks: ADD against its floor, start-up, size, generation
	.ci/needs
	$(GO) test -run '^$$' -bench . -benchmem work

.PHONY: playground-bench
playground-bench: ## How long the playground takes to open, and after a keystroke, in headless Chromium
	.ci/playground bench

.PHONY: golden
golden: ## Write the golden files anew; review the difference with git
	$(GO) test ./redirect ./dialect/istio -run Golden -rulesettest.update
	git diff --stat -- '*testdata*'

.PHONY: lint
lint: ## golangci-lint (its first build takes some minutes)
	@.ci/tool golangci-lint
	for module in $$(.ci/modules); do (cd $$module && golangci-lint run ./...); done

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist .cache
