package inject

import (
	"crypto/sha256"
	"encoding/json"
)

// Identity identifies what a SidecarSet says about new Pods: two objects with equal
// Identities compile to compiled SidecarSets that behave in the same way.
type Identity [sha256.Size]byte

// IdentityOf returns the Identity of a SidecarSet (v1beta1, as served, packed or
// not). Objects are compared in one form: a packed object has another Identity
// than its unpacked copy.
//
// Of the status only the names of revisions count: counters change with every
// Pod. The custom version counts: clients of v1alpha1 change it as a label,
// which begins no new generation. Other labels and managed fields do not count.
func IdentityOf(object map[string]any) Identity {
	metadata, _ := object["metadata"].(map[string]any)
	status, _ := object["status"].(map[string]any)
	parts := []any{
		metadata["uid"], metadata["generation"], metadata["deletionTimestamp"], metadata["annotations"],
		status["observedGeneration"], status["latestRevision"], status["stableRevision"], status["collisionCount"], object["spec"],
	}
	text, _ := json.Marshal(parts) // members sorted; no value that came as JSON fails
	return sha256.Sum256(text)
}
