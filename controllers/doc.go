// Package controllers keeps what SidecarSets say about running Pods true. It
// runs on the leader only: it watches Pods, hands them to internal/tally, and
// writes what internal/status makes of the counters. What a SidecarSet is, it
// reads from the snapshot that admission works with; it refuses to know how
// Pods are injected and how webhooks are served.
package controllers
