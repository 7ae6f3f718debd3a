// Package revision knows when two revisions of a SidecarSet are the same: the
// content hash that Pods carry. It knows nothing about the API server and
// depends on no Kubernetes type, so that upgrading a library cannot change a
// hash and with it mark every Pod of a cluster as outdated.
package revision
