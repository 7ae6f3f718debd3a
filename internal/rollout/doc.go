// Package rollout decides which Pods of one SidecarSet are updated next: order,
// priority, scatter, partition and the budget of maxUnavailable. It does not know
// what a container is, what time it is, or how Pods are written.
// docs/design/0009-running-pods.md has the budget and its reasons; the order is
// that of OpenKruise 1.9.
//
// A Queue belongs to one SidecarSet. Its owner tells it what the Pod watch says
// (Set, Remove), what the SidecarSet wants (SetStrategy, SetContent) and how many
// Pods it matches (SetCounts); it asks which Pods to write (Next), and says for
// each of them how that went (Written, Hold, Retry). A Queue remembers nothing that
// a new leader could not read from the Pods, except for writes that the watch has
// not delivered yet.
package rollout
