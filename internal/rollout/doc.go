// Package rollout decides which Pods of one SidecarSet are updated next: order,
// priority, scatter, partition and the budget of maxUnavailable. It knows nothing about
// containers, time, or how Pods are written. docs/design/0009-running-pods.md has the
// budget and its reasons; the order is that of OpenKruise 1.9.
//
// A Queue belongs to one SidecarSet. Its owner passes Pods from the watch (Set,
// Remove), the strategy and content of the SidecarSet (SetStrategy, SetContent), and
// the number of matched Pods (SetCounts). It asks which Pods to write (Next), and
// reports the result of each write (Written, Hold, Retry). A new leader can rebuild a
// Queue from the Pods, except for writes that the watch has not delivered yet.
package rollout
