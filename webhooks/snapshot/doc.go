// Package snapshot knows what is stored, on every replica: a Store follows
// SidecarSets, Namespaces and ControllerRevisions by the manager's informers and
// publishes a match.Snapshot, by which package pods decides about Pods.
//
// Store.HasObserved says whether the snapshot has observed what a call requires, and Store.WaitFor
// waits for given versions. Health ends the process if etcd
// was restored from a backup. Shared asks the API server once for all requests that need the
// same answer. RecordedRevisions reads revisions live.
//
// The package serves no requests and makes no decision about a Pod.
package snapshot
