// Package skew tests the operator where the API server is newer than the
// Kubernetes libraries that the operator was built against. go.v0.36.mod is the
// root module with the libraries of one minor version earlier; make tidy writes
// it, and make older-build builds with it.
package skew
