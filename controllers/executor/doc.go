// Package executor writes the updates of running Pods, on the leader. It takes Pods
// from the rollout of their SidecarSet, which decides about order, budget and back-off, and
// returns each one with the result.
//
// A pass (executor.go) takes what may be written now. An update (update.go) or an eviction
// (evict.go) reads the Pod, decides again from what it reads, and sends one write with a
// precondition; request.go repeats that until the result is known. The same workers end hot
// upgrades (chore.go) and write the condition SidecarSetUpgradable (condition.go). No write is
// sent once the leader's Lease is old (leadership.go).
//
// The package does not know the order, the budget, or what a SidecarSet puts into a Pod.
package executor
