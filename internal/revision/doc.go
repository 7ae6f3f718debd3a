// Package revision knows when two revisions of a SidecarSet are the same (the hash
// that Pods have), how a revision is recorded in a ControllerRevision and read back, and
// which of them to keep. It does not know how ControllerRevisions are read and written.
//
// The hash depends on no Kubernetes type. Otherwise an upgrade of a library could change the
// hash, and mark every Pod of a cluster as outdated.
package revision
