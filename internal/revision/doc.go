// Package revision knows when two revisions of a SidecarSet are the same (the
// content hash that Pods carry), how a revision is recorded in a
// ControllerRevision and read back, and which of them to keep. It refuses to
// know how ControllerRevisions are read and written.
//
// The hash depends on no Kubernetes type, so that upgrading a library cannot
// change it and with it mark every Pod of a cluster as outdated.
package revision
