// Package snapshot knows what is stored, on every replica: a Catalog follows
// SidecarSets, Namespaces and ControllerRevisions by the manager's informers and
// publishes a match.Snapshot, by which package pods decides about Pods.
//
// It also knows when a snapshot must not be trusted. WatchHealth notices a watch that
// has gone silent. A Timeline notices that etcd was restored from a backup.
// Catalog.WaitFor waits until the snapshot holds given versions. Shared asks the
// API server once for all requests that need the same answer. RecordedRevisions reads
// revisions live.
//
// The package serves no requests and makes no decision about a Pod.
package snapshot
