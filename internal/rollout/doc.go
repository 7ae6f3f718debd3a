// Package rollout decides which Pods of one SidecarSet are updated next: order,
// priority, scatter, partition and the budget of maxUnavailable. It does not know
// what a container is, what time it is, or how Pods are written.
// docs/design/0009-running-pods.md has the budget and its reasons; the order is
// that of OpenKruise 1.9.
package rollout
