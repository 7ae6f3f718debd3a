// Package clustertest tests the verbs of the plugin on a whole control plane with the operator and
// simulated nodes. All tests share one, which test/stand of the operator's module starts. Each
// test has a namespace and a SidecarSet of its own.
//
//	go test ./clustertest            # in cmd/kubectl-sidecarset
//	go test -short ./...             # everything else: without a control plane
//
// STAND and OPERATOR may name the programs to use, as for the operator's own tests; without them
// they are built, which takes minutes the first time.
package clustertest
