// Package controllers acts on what is stored. The SidecarSet controller runs on the
// leader: it watches Pods, hands them to internal/tally, records revisions, and writes
// what internal/status makes of the counters and of the readiness that it is handed. It
// reads SidecarSets from the snapshot that admission works with. It does not know webhook
// entries.
package controllers
