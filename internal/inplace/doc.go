// Package inplace decides about one running Pod and one SidecarSet: how the Pod counts
// (revision.go), how it can get the current revision (judge.go), and which patch brings it there
// (update.go, resize.go, hotupgrade.go). It takes values and returns values. What the Pod
// records, and when an update is over, is known to package podstate. inplace knows nothing about
// order, budget and requests. docs/design/0009-running-pods.md has the rules and their reasons.
package inplace
