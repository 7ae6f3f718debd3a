// Package executor writes running Pods, on the leader. It takes Tasks from the rollout of a
// SidecarSet, which decides about order and budget, and returns each one with the result.
//
// A pass (executor.go) takes what may be written now. A Task reads the Pod, decides again from what
// it reads (update.go, condition.go), and sends one write with a precondition; request.go repeats that
// until the result is known. No write is sent once the leader's Lease is old (leadership.go).
//
// The package does not know the order, the budget, or what a SidecarSet puts into a Pod.
package executor
