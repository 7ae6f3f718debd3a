// Package controllers keeps the status and the revisions of SidecarSets. It runs on
// the leader.
//
// A Pod event goes from the reflector (pod_reflector.go) as a summary to the one
// goroutine that owns the counters (pod_tracker.go), which wakes the reconciler
// (sidecarset_pace.go). The reconciler (sidecarset_controller.go) looks at one SidecarSet:
// it gathers the counters, the readiness and the revision (sidecarset_revisions.go),
// and writes what internal/status makes of them (sidecarset_status.go), at a pace
// (sidecarset_pace.go).
//
// SidecarSets come from the snapshot that admission decides by. The package knows
// neither Pod webhooks nor how Pods are injected: Readiness is an interface.
package controllers
