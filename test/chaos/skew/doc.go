// Package skew tests the operator with an API server that is newer than the Kubernetes libraries
// of the operator. test/skew/go.v0.36.mod is the root module with the libraries of one minor version
// earlier. make tidy writes it, and make older-build builds with it.
package skew
