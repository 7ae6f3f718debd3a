// Package rollout decides which Pods of one SidecarSet are updated next, why the others wait, and
// for which Pod. Decide is a pure function of the update strategy, the status, the Pods and the
// time. It remembers nothing: what must outlive a leader is in the records on the Pods, or in the
// status. docs/rollouts.md has the six rules, docs/design/0009-running-pods.md why they are these;
// scenes_test.go runs it in imitated clusters, with the Tracker. The order of Pods is that of OpenKruise 1.9.
//
// The package knows nothing about containers, requests and clocks.
package rollout
