// Package rollout decides which Pods of one SidecarSet are written or evicted next: order,
// priority, scatter, partition, the budget of maxUnavailable, proof, share, refusals. It knows
// nothing about containers, and has no clock. docs/design/0009-running-pods.md has the rules
// and what was simulated before they were chosen; the order is that of OpenKruise 1.9.
//
// A Rollout belongs to one SidecarSet. Its owner passes Pods from the watch (Add, Set, Remove),
// the strategy and the content of the SidecarSet, and the result of each write (Return). It asks
// for a pass over all Pods (Next, Report). What a Rollout knows beyond the Pods is lost with the
// leader: which Pods are proven, the places of deleted Pods, refusals, and evictions.
package rollout
