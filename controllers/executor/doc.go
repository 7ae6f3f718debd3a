// Package executor writes the updates of running Pods, on the leader. It takes Pods
// from the queue of their SidecarSet, which decides about order and budget, and returns
// each one to the queue with the result.
//
// A pass (executor.go) takes what may be written now. A write (update.go) reads the
// Pod, decides again from what it reads, and sends one patch with a precondition. An
// eviction (evict.go) asks the API server to evict a Pod that is to be recreated. The
// same workers end hot upgrades (chore.go) and write the condition SidecarSetUpgradable
// (condition.go). No write is sent once the leader's Lease is old (leadership.go).
//
// The package does not know the order, the budget, or what a SidecarSet puts into a Pod.
package executor
