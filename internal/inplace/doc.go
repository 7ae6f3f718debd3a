// Package inplace decides about one running Pod and one SidecarSet: which way the
// Pod can follow a change, what is recorded on it, and when it has followed. It
// takes values and returns values; order, budget and writes are not its business.
// docs/design/0009-running-pods.md has the rules and their reasons.
package inplace
