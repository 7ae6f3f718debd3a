package controllers

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/status"
)

// Readiness reports which SidecarSets are in force.
type Readiness interface {
	// Of returns what is known of one generation of the SidecarSet with this name
	// and UID; nil if nothing is known. It does not wait, and is safe for
	// concurrent use.
	Of(sidecarSet string, uid types.UID, generation int64) *status.Readiness
	// Notify registers changed, which is called with a SidecarSet's name when the
	// result of Of changes. changed does not wait, and may be called from any
	// goroutine. Notify is called before the manager starts.
	Notify(changed func(sidecarSet string))
}
