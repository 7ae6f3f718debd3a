# Everything a contributor, CI and the README run. `make help` lists the targets.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The Kubernetes version of the stand: v1.37.1, or one that test/controlplane has a go.v*.mod for.
K8S_VERSION ?= v1.37.1
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# The name of the image that make builds and deploys. The registry does not exist: a kubelet
# pulls no image unless the user has set a name.
IMAGE       ?= registry.invalid/sidecarset-operator:$(VERSION)
# The commit, for the image's labels.
REVISION    ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# What is deployed: config/default, or one of config/overlays.
LAYOUT      ?= config/default
CONTAINER_TOOL ?= docker
KUBECTL     ?= kubectl

# The directory for the files of the stand and the demo. Git ignores it.
STATE    ?= $(CURDIR)/.cache
BIN      := $(CURDIR)/bin
STAND    := $(BIN)/stand
SPLICE   := $(BIN)/splice
OPERATOR := $(BIN)/sidecarset-operator
CERTMANAGER := $(BIN)/certmanager
# The operator with the Kubernetes libraries of the minor version before, for test/skew.
OLDER     := $(BIN)/sidecarset-operator-v0.36
OLDER_MOD := test/skew/go.v0.36.mod
# The operator of an earlier commit, for a test of two versions side by side. Move
# the commit on when a format changes.
PREVIOUS        := $(BIN)/sidecarset-operator-previous
PREVIOUS_COMMIT := cb54fbc230f85a402201fe33a36e1fcff7f6258a

GO         ?= go
GOFLAGS    += -buildvcs=false
LDFLAGS    := -s -w -X main.version=$(VERSION)
# Packages whose tests need no control plane.
UNIT_PKGS   = $(shell $(GO) list ./... | grep -v -e /test/integration -e /test/cluster -e /test/chaos -e /test/node -e /test/scale -e /test/skew -e /test/stand)
# Of these, the ones in which goroutines share memory: they, or their tests, import
# sync or synctest. The race detector makes a test four times slower, and finds
# nothing in the others. Vetting is a part of lint.
SHARING_PKGS = $(shell $(GO) list -f '{{.ImportPath}} {{.Imports}} {{.TestImports}} {{.XTestImports}}' $(UNIT_PKGS) | grep -E '[ [](sync|sync/atomic|testing/synctest)[] ]' | cut -d' ' -f1)
# Long simulations and bodies of megabytes, nearly all of one goroutine at a time, in which the
# race detector finds nothing and takes 10 to 20 times as long. A test that is renamed out of
# this list runs with the race detector.
SIMULATIONS := ^TestClockThatIsWrong|^TestRotationLosesNoCall|Laws$$|^TestComputeEqualsAModel|^TestComputeReplacesRecordsBeyond|^TestStrangersReviewsLeaveLittleBehind|^TestStoredSidecarSetsTakeNoRoom|^TestTheLargestBodiesThatPass|^TestMemoryPerStoredSidecarSet|^TestLongListsAreShared|^TestPodPartsCopiedIntoSidecarsAreBounded|^TestAMadeUpPodOfASharingSidecarSet|^TestAnAnnotationThatIsMergedIsBounded
# The packages of the stand that do not compile Kubernetes itself.
STAND_PKGS := ./internal/... ./cmd/modfile ./cmd/splice ./cmd/stand ./stages
MODULES    := . hack/image test/controlplane test/controlplane/kwok test/certmanager hack/tools

export K8S_VERSION STAND GOFLAGS

##@ Everyday

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*##/ {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the operator into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(OPERATOR) .
	@echo "$(OPERATOR): $$(($$(wc -c <$(OPERATOR)) / 1000)) kB"

.PHONY: test
test: build stand-build certmanager-build older-build previous-build ## Run every tier that this machine can run, side by side; each prints when it ends
	@$(MAKE) --no-print-directory -k -j3 --output-sync=target NICE=nice test-unit lane-integration-chaos lane-cluster-node-stand

# A lane runs its tiers one after the other: lane-A-B runs test-A, then test-B. The unit
# tests take what processors the lanes leave. test-chaos comes last, beside tiers that
# wait: on a machine so busy that the operator's deadlines pass, its calls fail.
lane-%:
	@code=0; for tier in $(subst -, ,$*); do $(MAKE) --no-print-directory test-$$tier || code=1; done; exit $$code

# CLUSTER=existing, on the cluster of your kubeconfig, needs no control plane; and with IMAGE no operator here.
.PHONY: demo
demo: $(if $(filter existing,$(CLUSTER)),$(if $(WEBHOOK_HOST),build $(SPLICE)),build stand-build $(SPLICE)) ## Start a real control plane with the operator on it and show what it does (CLUSTER=existing: on yours)
	@STATE='$(STATE)/demo' STAND='$(STAND)' OPERATOR='$(OPERATOR)' SPLICE='$(SPLICE)' hack/demo.sh up

.PHONY: demo-down
demo-down: $(if $(filter existing,$(CLUSTER)),,$(STAND)) ## Stop and remove what `make demo` started
	@STATE='$(STATE)/demo' STAND='$(STAND)' OPERATOR='$(OPERATOR)' SPLICE='$(SPLICE)' hack/demo.sh down

##@ On your cluster, with the current kubeconfig

# Without a container tool, for linux/amd64 and linux/arm64, and the same bytes each
# time. The layout is for tools that read OCI layouts, such as skopeo.
.PHONY: image
image: ## Build the image into dist/image, an OCI layout
	@$(GO) -C hack/image run . operator --source='$(CURDIR)' --version='$(VERSION)' --revision='$(REVISION)' --name='$(IMAGE)' --layout='$(CURDIR)/dist/image'

.PHONY: push
push: ## Build the image and push it as IMAGE
	@$(GO) -C hack/image run . operator --source='$(CURDIR)' --version='$(VERSION)' --revision='$(REVISION)' --name='$(IMAGE)' --push

.PHONY: docker-image
docker-image: ## Build the image IMAGE from the Dockerfile with CONTAINER_TOOL (docker)
	$(CONTAINER_TOOL) build --build-arg VERSION='$(VERSION)' --build-arg REVISION='$(REVISION)' -t '$(IMAGE)' .

.PHONY: install
install: ## Apply the CustomResourceDefinition only
	$(TOOL) kustomize build config/crd | $(KUBECTL) apply --server-side -f -

# The manifests name one image; what is deployed is IMAGE, without changing a file.
.PHONY: deploy
deploy: ## Apply LAYOUT (config/default, or one of config/overlays), with the image IMAGE
	@case '$(IMAGE)' in registry.invalid/*) echo 'no kubelet can pull $(IMAGE): set IMAGE to the image that `make push IMAGE=...` has pushed' >&2; exit 1;; esac
	$(TOOL) kustomize build '$(LAYOUT)' | sed 's|image: registry.invalid/sidecarset-operator:.*|image: $(IMAGE)|' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Delete LAYOUT, SidecarSets included
	$(TOOL) kustomize build '$(LAYOUT)' | $(KUBECTL) delete --ignore-not-found -f -

##@ Test tiers

.PHONY: test-unit
test-unit: ## Pure functions, laws and adapters without a cluster; with the race detector where goroutines share memory
	$(NICE) $(GO) test -vet=off -race -short -timeout 30m -skip '$(SIMULATIONS)' $(SHARING_PKGS)
	$(NICE) $(GO) test -vet=off -timeout 30m $(filter-out $(SHARING_PKGS),$(UNIT_PKGS))
	$(NICE) $(GO) test -vet=off -run 'Allowance|Allocate|Memory|$(SIMULATIONS)' ./certs ./test/bench ./internal/inject ./webhooks/... # allocation gates count without the race detector, which allocates
	$(NICE) $(GO) -C test/controlplane test $(STAND_PKGS)
	$(NICE) $(GO) -C hack/image test ./...

# How many processes share the tests of a package that needs a control plane, each with a
# control plane of its own. These tests wait more than they compute: three keep two processors
# busy, and five of test-chaos, which waits the most.
SHARDS ?=
# These tests do not measure the control plane either, so here it collects its garbage seldom.
test-integration test-cluster test-node test-stand test-chaos: export STAND_GOGC ?= 400

.PHONY: test-integration
test-integration: build stand-build certmanager-build older-build ## The operator on a real API server, and with a real cert-manager
	SHARDS=$(or $(SHARDS),3) OPERATOR='$(OPERATOR)' OPERATOR_OLDER='$(OLDER)' CERTMANAGER='$(CERTMANAGER)' $(GO) test -count=1 -timeout 60m -run '$(RUN)' ./test/integration/... ./test/skew/...

# Each is built once, in 6 to 12 minutes of two cores.
VERSIONS ?= v1.31.0 v1.32.0 v1.33.0 v1.34.0 v1.35.0 v1.36.4 v1.37.1
.PHONY: test-versions
test-versions: build certmanager-build older-build $(STAND) ## test-integration's tests on each of VERSIONS; hours
	@failed=; for version in $(VERSIONS); do \
	  echo "== $$version"; export K8S_VERSION=$$version; \
	  { $(STAND) build >/dev/null && OPERATOR='$(OPERATOR)' OPERATOR_OLDER='$(OLDER)' CERTMANAGER='$(CERTMANAGER)' \
	    $(GO) test -count=1 -timeout 60m ./test/integration/...; } || failed+=" $$version"; \
	done; [ -z "$$failed" ] || { echo "failed on:$$failed" >&2; exit 1; }

.PHONY: test-skew
test-skew: stand-build older-build ## The operator built against older Kubernetes libraries than the API server's
	OPERATOR_OLDER='$(OLDER)' $(GO) test -count=1 ./test/skew/...

.PHONY: older-build
older-build: ## Build the operator against the Kubernetes libraries of the minor version before
	@CGO_ENABLED=0 $(GO) build -trimpath -modfile=$(OLDER_MOD) -ldflags '$(LDFLAGS)' -o $(OLDER) .

.PHONY: previous-build
previous-build: ## Build the operator of an earlier commit, out of the repository's history
	@if git cat-file -e '$(PREVIOUS_COMMIT)^{commit}' 2>/dev/null; then \
		rm -rf '$(STATE)/previous' && mkdir -p '$(STATE)/previous' && \
		git archive '$(PREVIOUS_COMMIT)' | tar -x -C '$(STATE)/previous' && \
		CGO_ENABLED=0 $(GO) build -C '$(STATE)/previous' -trimpath -ldflags '$(LDFLAGS)' -o '$(PREVIOUS)' . ; \
	else rm -f '$(PREVIOUS)'; echo 'SKIP: commit $(PREVIOUS_COMMIT) is not in the history of this clone; fetch it with git fetch --unshallow'; fi

.PHONY: test-cluster
test-cluster: build stand-build ## The operator on a whole control plane with simulated nodes
	SHARDS=$(or $(SHARDS),3) OPERATOR='$(OPERATOR)' $(GO) test -count=1 -timeout 60m -run '$(RUN)' ./test/cluster/...

.PHONY: test-node
test-node: build stand-build ## A real kubelet and containerd, as root; prints SKIP elsewhere
	OPERATOR='$(OPERATOR)' $(GO) test -count=1 -timeout 60m -run '$(RUN)' ./test/node/...

.PHONY: test-stand
test-stand: stand-build ## The stand itself: its programs start, fail, and stop
	$(GO) test -count=1 -timeout 60m -run '$(RUN)' ./test/stand/...

.PHONY: test-chaos
test-chaos: build stand-build previous-build ## Short forms of what `make chaos` shows
	SHARDS=$(or $(SHARDS),5) OPERATOR='$(OPERATOR)' OPERATOR_PREVIOUS="$$(ls '$(PREVIOUS)' 2>/dev/null || true)" $(GO) test -count=1 -timeout 60m -run '$(RUN)' ./test/chaos

PODS ?= 10000
SETS ?= 100
ROUNDS ?= 3

.PHONY: scale
scale: build stand-build ## What PODS Pods under SETS SidecarSets cost: admitted, churned, rolled; prints FIGURES
	PODS=$(PODS) SETS=$(SETS) ROUNDS=$(ROUNDS) OPERATOR='$(OPERATOR)' $(GO) test -count=1 -timeout 12h -v ./test/scale

.PHONY: chaos
chaos: build stand-build previous-build ## What docs/reliability.md claims, in full; prints FIGURES. RUN picks tests
	CHAOS=long SOAK=$(SOAK) OPERATOR='$(OPERATOR)' OPERATOR_PREVIOUS="$$(ls '$(PREVIOUS)' 2>/dev/null || true)" $(GO) test -count=1 -timeout 5h -v -run '$(RUN)' ./test/chaos

SOAK ?= 5m
.PHONY: soak
soak: build stand-build ## Goroutines and memory while SidecarSets and Pods come and go, for SOAK
	SOAK=$(SOAK) OPERATOR='$(OPERATOR)' $(GO) test -count=1 -timeout 24h -v -run Flat ./test/chaos

FUZZTIME ?= 10s
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	FUZZTIME=$(FUZZTIME) hack/fuzz.sh

.PHONY: bench-admission
bench-admission: build stand-build ## What SidecarSets add to creations, through a real API server
	CHAOS=long OPERATOR='$(OPERATOR)' $(GO) test -count=1 -timeout 60m -v -run 'AddedLatency|BesideNone' ./test/chaos

.PHONY: bench
bench: ## Ratios of an admission against the comparator, in memory and over HTTPS, in interleaved rounds
	$(GO) run ./test/bench/report

##@ The stand

.PHONY: $(STAND) $(SPLICE) # the go command knows whether there is something to do
$(STAND):
	@$(GO) build -C test/controlplane -trimpath -o $@ ./cmd/stand
$(SPLICE):
	@$(GO) build -C test/controlplane -trimpath -o $@ ./cmd/splice

.PHONY: stand-build
stand-build: $(STAND) ## Build the control plane once (minutes); later runs find it in the user's cache directory
	@$(STAND) build >/dev/null

.PHONY: certmanager-build
certmanager-build: ## Build cert-manager's controllers once (four minutes of one core; 15 at most); later the Go build cache has them
	@timeout 15m $(GO) build -C test/certmanager -trimpath -o '$(CERTMANAGER)' .

.PHONY: cluster
cluster: stand-build ## Start a whole control plane with 3 simulated nodes
	$(STAND) up --dir '$(STATE)/cluster' --control-plane full --nodes 3

.PHONY: cluster-down
cluster-down: $(STAND) ## Stop it
	$(STAND) down --dir '$(STATE)/cluster'

##@ Code

# Generators and linters at the versions of hack/tools/go.mod. The go command
# builds each of them once and keeps it in its build cache.
TOOL = $(GO) tool -modfile=hack/tools/go.mod

.PHONY: generate
generate: ## Generate deep copies of the API types
	$(TOOL) controller-gen object paths=./apis/...

# controller-gen repeats the list type that label selectors have in Go. A list without the
# keyword is atomic too, so the CRD does without it, like OpenKruise's.
.PHONY: manifests
manifests: ## Generate the CRD, the operator's roles and dist/
	$(TOOL) controller-gen crd paths=./apis/... output:crd:dir=config/crd/bases
	sed -i '/x-kubernetes-list-type: atomic$$/d' config/crd/bases/*.yaml
	$(TOOL) controller-gen rbac:roleName=sidecarset-operator paths=./cmd/operator paths=./certs paths=./controllers/... paths=./webhooks/... output:rbac:dir=config/rbac
	$(TOOL) kustomize build config/default >dist/install.yaml
	$(TOOL) kustomize build config/overlays/hardened >dist/install-hardened.yaml

.PHONY: notices
notices: ## Generate NOTICES, the licences of everything that is compiled into the operator
	@mkdir -p $(BIN)
	$(GO) run ./hack/notices >$(BIN)/NOTICES.new
	mv $(BIN)/NOTICES.new NOTICES

.PHONY: lint
lint: vet ## Import rules and linters; the first run builds the linter, which takes minutes
	$(TOOL) golangci-lint run ./...

.PHONY: fmt
fmt: ## Format all Go code
	gofmt -w $$(git ls-files '*.go')

.PHONY: vet
vet: ## go vet
	$(GO) vet ./...
	$(GO) -C test/controlplane vet $(STAND_PKGS)
	$(GO) -C hack/image vet ./...
	$(GO) -C test/certmanager vet -trimpath ./... # what the build has compiled is not compiled again

# Not in hack/tools, whose linters need a later golang.org/x/telemetry than it does.
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.2.0
VULNDB ?= https://vuln.go.dev
.PHONY: vulncheck
vulncheck: ## Known vulnerabilities in what the operator calls, by the Go vulnerability database
	@if ! curl -fs -m 10 -o /dev/null '$(VULNDB)/index/db.json'; then \
		echo 'SKIP: the vulnerability database $(VULNDB) cannot be reached; set VULNDB to a mirror (file:///... is one)'; \
	else $(GO) run $(GOVULNCHECK) -db '$(VULNDB)' ./...; fi

OLDER_LIBRARIES := $(foreach m,api apiextensions-apiserver apimachinery apiserver client-go component-base streaming,k8s.io/$(m)=k8s.io/$(m)@v0.36.4) \
	sigs.k8s.io/controller-runtime=sigs.k8s.io/controller-runtime@v0.24.1

.PHONY: tidy
tidy: ## go mod tidy in every module
	@for m in $(MODULES); do $(GO) -C $$m mod tidy || exit 1; done
	@$(GO) -C test/controlplane mod tidy -modfile=go.v1.36.mod # older ones do not change: they are released
	@sed '1i // Generated by make tidy from ../../go.mod, with the Kubernetes libraries of the minor version before.' go.mod >$(OLDER_MOD)
	@$(GO) mod edit $(OLDER_LIBRARIES:%=-replace=%) $(OLDER_MOD)
	@$(GO) mod tidy -modfile=$(OLDER_MOD)

.PHONY: verify
verify: generate manifests tidy notices ## Regenerate everything; the tree must stay clean
	@git diff --exit-code -- . || { echo 'verify: generated files are out of date; commit the changes above' >&2; exit 1; }
	@test -z "$$(git status --porcelain)" || { git status --short; echo 'verify: untracked files' >&2; exit 1; }
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'verify: run make fmt' >&2; exit 1; }
