// Package skew tests the operator with an API server that is newer than the Kubernetes libraries
// of the operator. make chaos builds it with the libraries of one minor
// version earlier.
package skew
