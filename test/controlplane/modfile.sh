#!/usr/bin/env bash
# Writes the go.mod with which this module builds one Kubernetes version: modfile.sh [--main] VERSION, as v1.36.4. With
# --main, that is go.mod itself; otherwise it is go.v1.36.mod.
#
# k8s.io/kubernetes replaces its staging modules by directories of its own repository, which other modules
# cannot use. The written file replaces each of them by the version that was published at the same time.
set -euo pipefail
cd "$(dirname "$0")"
export GOWORK=off
kwok=sigs.k8s.io/kwok/cmd/kwok@v0.8.0 # built with the same libraries as the version of go.mod

main=
[ "${1:-}" != --main ] || main=$1
version=${!#}
[[ $version =~ ^v1\.([0-9]+)\.[0-9] ]] || { echo 'usage: modfile.sh [--main] VERSION, as v1.36.4' >&2; exit 2; }
file=go.v1.${BASH_REMATCH[1]}.mod
[ -z "$main" ] || file=go.mod
staging=v0.${version#v1.}
upstream=$(go mod download -json "k8s.io/kubernetes@$version" | awk -F'"' '$2 == "GoMod" {print $4}')
go=$(awk '$1 == "go" {print $2}' "$upstream")
etcd=$(awk '$1 == "go.etcd.io/etcd/client/v3" {print $2}' "$upstream") # Kubernetes is tested with the server of this version

# What cmd/kube imports, and what Kubernetes replaces; go mod tidy adds the rest.
cat >"$file" <<MOD
module github.com/sidecarset/operator/test/controlplane

go $go

godebug default=go$(cut -d. -f1,2 <<<"$go")

require (
	go.etcd.io/etcd/server/v3 $etcd
	k8s.io/client-go $staging
	k8s.io/component-base $staging
	k8s.io/kubectl $staging
	k8s.io/kubernetes $version
)

replace (
$(awk -v version="$staging" '$2 == "=>" && $3 ~ "^./staging/" {print "\t" $1 " => " $1 " " version}' "$upstream")
)
MOD
[ -z "$main" ] || go get -tool "$kwok"
go mod tidy -modfile="$file"
[ -z "$main" ] || go test -count=1 ./internal/build # says which modules the operator has in other versions
