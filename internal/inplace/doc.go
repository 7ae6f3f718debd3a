// Package inplace decides about one running Pod and one SidecarSet: how the Pod can be
// updated, what is recorded on it, and when the update is over. It takes values and
// returns values. It knows nothing about order, budget and writes.
// docs/design/0009-running-pods.md has the rules and their reasons.
package inplace
