# Everything a contributor, CI and the README run. `make help` lists the targets.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# The image that is built and deployed. The registry does not exist: a kubelet pulls no image
# unless the user has set a name.
IMAGE   ?= registry.invalid/sidecarset-operator:$(VERSION)
# What is deployed: config/default, or one of config/overlays.
KUSTOMIZATION  ?= config/default
KUBECTL ?= kubectl
GO      ?= go
# The files of the stand and the demo. Git ignores this directory.
STATE   ?= $(CURDIR)/.cache

# Programs and tests are compiled with the same flags, so nothing is compiled twice.
export CGO_ENABLED ?= 0
export GOFLAGS     := -trimpath -buildvcs=false $(GOFLAGS)
LDFLAGS := -s -w -X main.version=$(VERSION)

BIN := $(CURDIR)/bin
# The suites and the demo read these. A suite builds what is not named.
export STAND              ?= $(BIN)/stand
export OPERATOR           ?= $(BIN)/sidecarset-operator
export PLUGIN             ?= $(BIN)/kubectl-sidecarset
export CERTMANAGER        ?= $(BIN)/certmanager
export OPERATOR_OLDER     ?= $(BIN)/sidecarset-operator-older
export OPERATOR_PREVIOUS  ?= $(BIN)/sidecarset-operator-previous

# Generators and linters at the versions of hack/tools/go.mod.
TOOL = $(GO) tool -modfile=hack/tools/go.mod

##@ Everyday

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*##/ {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the operator into bin/
	@$(GO) build -ldflags '$(LDFLAGS)' -o '$(OPERATOR)' .

.PHONY: build-plugin
build-plugin: ## Build the kubectl plugin into bin/
	@$(GO) build -C cmd/kubectl-sidecarset -ldflags '$(LDFLAGS)' -o '$(PLUGIN)' .

# On the cluster of your kubeconfig, only an operator on this machine needs to be built.
EXISTING := $(filter existing,$(CLUSTER))
.PHONY: demo
demo: build-plugin $(if $(EXISTING),$(if $(WEBHOOK_HOST),build),stand build) ## Show what the operator does on a real control plane, or with CLUSTER=existing on yours
	@STATE='$(STATE)/demo' hack/demo.sh up

.PHONY: demo-down
demo-down: ## Stop and remove what make demo has started
	@STATE='$(STATE)/demo' hack/demo.sh down

.PHONY: test
test: stand build ## The tests: unit, then the operator on a real API server, a control plane and a kubelet
	@hack/test.sh test

.PHONY: test-unit
test-unit: ## The tests that need no control plane
	@hack/test.sh units

##@ On your cluster, with the current kubeconfig

.PHONY: push
push: ## Build the image for linux/amd64 and linux/arm64, without Docker, and push it as IMAGE
	@$(MAKE) --no-print-directory image OUTPUT=--push

OUTPUT ?= --layout='$(CURDIR)/dist/image'
.PHONY: image
image: ## The same into dist/image, an OCI layout
	@mkdir -p '$(BIN)' && $(GO) run ./hack/notices >'$(BIN)/NOTICES'
	@$(GO) -C hack/image run . operator --source='$(CURDIR)' --version='$(VERSION)' --revision="$$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
	  --notices='$(BIN)/NOTICES' --name='$(IMAGE)' $(OUTPUT)

# The archives' names have VERSION. Krew downloads them from PLUGIN_URL.
PLUGIN_URL ?= https://registry.invalid/kubectl-sidecarset/$(VERSION)
PLUGIN_PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
.PHONY: plugin
plugin: ## The archives of the kubectl plugin, sums and the manifest for Krew into dist/plugin
	@mkdir -p '$(BIN)' && $(GO) run ./hack/notices cmd/kubectl-sidecarset $(PLUGIN_PLATFORMS) >'$(BIN)/NOTICES-plugin'
	@$(GO) -C hack/image run . plugin --source='$(CURDIR)/cmd/kubectl-sidecarset' --version='$(VERSION)' --notices='$(BIN)/NOTICES-plugin' \
	  $(if $(wildcard LICENSE),--licence='$(CURDIR)/LICENSE') --platforms="$$(echo $(PLUGIN_PLATFORMS) | tr ' ' ,)" --url='$(PLUGIN_URL)' --out='$(CURDIR)/dist/plugin'

# The same VERSION, REGISTRY and RELEASE_URL make the same bytes. With PUSH=--push, image and chart go to REGISTRY.
REGISTRY ?= registry.invalid
RELEASE_URL ?= https://registry.invalid/releases/$(VERSION)
PUSH ?=
.PHONY: release
release: ## All files of the release VERSION into dist/release: image, chart, manifests, plugin, SBOMs, sums, notes
	@mkdir -p '$(BIN)' && $(GO) run ./hack/notices >'$(BIN)/NOTICES' && $(GO) run ./hack/notices cmd/kubectl-sidecarset $(PLUGIN_PLATFORMS) >'$(BIN)/NOTICES-plugin'
	@$(GO) -C hack/image run . release --source='$(CURDIR)' --version='$(VERSION)' --revision="$$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
	  --registry='$(REGISTRY)' --url='$(RELEASE_URL)' --notices='$(BIN)/NOTICES' --plugin-notices='$(BIN)/NOTICES-plugin' \
	  $(if $(wildcard LICENSE),--licence='$(CURDIR)/LICENSE') --plugin-platforms="$$(echo $(PLUGIN_PLATFORMS) | tr ' ' ,)" --out='$(CURDIR)/dist/release' $(PUSH)

# The manifests name one image; what is deployed is IMAGE, without changing a file.
.PHONY: deploy
deploy: ## Apply KUSTOMIZATION (config/default, or one of config/overlays) with the image IMAGE
	@case '$(IMAGE)' in registry.invalid/*) echo 'no kubelet can pull $(IMAGE): set IMAGE to the image that `make push IMAGE=...` has pushed' >&2; exit 1;; esac
	$(KUBECTL) kustomize '$(KUSTOMIZATION)' | sed 's|image: registry.invalid/sidecarset-operator:.*|image: $(IMAGE)|' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Delete KUSTOMIZATION, SidecarSets included
	$(KUBECTL) delete --ignore-not-found -k '$(KUSTOMIZATION)'

##@ More tests

.PHONY: test-long
test-long: ## The unit tests with all rounds of each invariant, and the race detector where goroutines share memory
	@LONG=1 RACE=1 hack/test.sh units

.PHONY: test-hostile
test-hostile: stand build ## Floods, forged reviews, large bodies, busy connections
	@hack/test.sh hostile

.PHONY: chaos
chaos: stand build older previous ## Faults, versions, skew, cert-manager; with CHAOS=long all of docs/reliability.md, in hours
	@$(GO) build -C test/ecosystem -o '$(CERTMANAGER)' ./certmanager
	@hack/test.sh chaos

.PHONY: test-charts
test-charts: stand build ## The chart in Helm, rules and dashboard in Prometheus; compiles both, which takes long
	@hack/test.sh charts

.PHONY: fuzz
fuzz: ## Every fuzz target with FUZZTIME inputs (5000x), or for a time (1m)
	@hack/fuzz.sh

.PHONY: bench
bench: ## Ratios of an admission against the comparator, in memory and over HTTPS
	$(GO) test -run none -bench . -benchtime 3s ./test/bench

##@ Code

# controller-gen repeats the list type that label selectors have in Go. A list without the
# keyword is atomic too, so the CRD does without it, like OpenKruise's.
.PHONY: generate
generate: ## Generate deep copies, CRD, roles and the chart's copies; tidy every module
	$(TOOL) controller-gen object paths=./apis/...
	$(TOOL) controller-gen crd paths=./apis/... output:crd:dir=config/crd/bases
	sed -i '/x-kubernetes-list-type: atomic$$/d' config/crd/bases/*.yaml
	$(TOOL) controller-gen rbac:roleName=sidecarset-operator paths=./cmd/operator paths=./certs paths=./controllers/... paths=./webhooks/... output:rbac:dir=config/rbac
	@for module in . cmd/kubectl-sidecarset hack/image test/controlplane test/ecosystem hack/tools; do $(GO) -C $$module mod tidy; done
	$(GO) test ./config -run ChartHasTheFiles -update

.PHONY: lint
lint: ## Linters, import rules, and known vulnerabilities where the database can be reached
	$(TOOL) golangci-lint run ./...
	$(GO) -C test/controlplane vet $(STAND_PACKAGES)
	cd cmd/kubectl-sidecarset && $(GO) tool -modfile=../../hack/tools/go.mod golangci-lint run --config=../../.golangci.yml ./...
	$(GO) -C hack/image vet ./...
	$(GO) -C test/ecosystem vet ./certmanager
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'lint: run gofmt -w .' >&2; exit 1; }
	@if curl -fs -m 10 -o /dev/null '$(VULNDB)/index/db.json'; then $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.2.0 -db '$(VULNDB)' ./...; \
	else echo 'SKIP: the vulnerability database $(VULNDB) cannot be reached; set VULNDB to a mirror (file:///... is one)'; fi
VULNDB ?= https://vuln.go.dev

.PHONY: verify
verify: generate ## Regenerate everything; the tree must stay clean
	@test -z "$$(git status --porcelain)" || { git status --short; git diff; echo 'verify: commit the generated files above' >&2; exit 1; }

##@

# The packages of the stand that do not compile Kubernetes itself.
export STAND_PACKAGES := ./internal/... ./cmd/stand ./stages

.PHONY: stand # builds the control plane once; later runs find it in the user's cache directory
stand:
	@mkdir -p '$(BIN)' && $(GO) build -C test/controlplane -o '$(BIN)/stand' ./cmd/stand
	@'$(STAND)' build >/dev/null

# The operator against the Kubernetes libraries of the minor version before.
OLDER := $(foreach m,api apiextensions-apiserver apimachinery apiserver client-go component-base streaming,k8s.io/$(m)=k8s.io/$(m)@v0.36.4) \
	sigs.k8s.io/controller-runtime=sigs.k8s.io/controller-runtime@v0.24.1
.PHONY: older
older:
	@mkdir -p '$(STATE)' && cp go.mod '$(STATE)/older.mod' && cp go.sum '$(STATE)/older.sum'
	@$(GO) mod edit $(OLDER:%=-replace=%) '$(STATE)/older.mod'
	@$(GO) build -mod=mod -modfile='$(STATE)/older.mod' -ldflags '$(LDFLAGS)' -o '$(OPERATOR_OLDER)' .

# The operator of an earlier commit, for a test of two versions side by side. Move the commit on
# when a format changes.
PREVIOUS := 93ef3eb2c44725e7be715ada9db65dbc415ab105
.PHONY: previous
previous:
	@if git cat-file -e '$(PREVIOUS)^{commit}' 2>/dev/null; then \
	  rm -rf '$(STATE)/previous' && mkdir -p '$(STATE)/previous' && git archive '$(PREVIOUS)' | tar -x -C '$(STATE)/previous' && \
	  $(GO) build -C '$(STATE)/previous' -ldflags '$(LDFLAGS)' -o '$(OPERATOR_PREVIOUS)' . ; \
	else rm -f '$(OPERATOR_PREVIOUS)'; echo 'SKIP: commit $(PREVIOUS) is not in the history of this clone; fetch it with git fetch --unshallow'; fi
