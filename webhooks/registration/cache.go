package registration

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/status"
)

// ReadinessCache holds what the leader knows of each SidecarSet's readiness, and notifies of
// changes. The zero value knows nothing. It is safe for concurrent use.
type ReadinessCache struct {
	mu      sync.Mutex
	known   map[string]cachedReadiness
	changed []func(sidecarSet string)
}

// cachedReadiness is about one generation of one object. Name and generation do not identify it:
// a SidecarSet that is deleted and created again has generation 1 again.
type cachedReadiness struct {
	uid        types.UID
	generation int64
	readiness  status.Readiness
}

// Of returns the readiness of a generation of a SidecarSet; nil if it is not known.
func (b *ReadinessCache) Of(sidecarSet string, uid types.UID, generation int64) *status.Readiness {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.known[sidecarSet]
	if !ok || known.uid != uid || known.generation != generation {
		return nil
	}
	return new(known.readiness)
}

// Notify registers a function that is called for each SidecarSet whose readiness changes from now on.
func (b *ReadinessCache) Notify(changed func(sidecarSet string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = append(b.changed, changed)
}

// replace sets the readiness of all SidecarSets, and notifies of each that differs. The
// ReadinessCache keeps next.
func (b *ReadinessCache) replace(next map[string]cachedReadiness) {
	b.mu.Lock()
	var differ []string
	for name, webhook := range next {
		if b.known[name] != webhook {
			differ = append(differ, name)
		}
	}
	b.known = next
	changed := b.changed
	b.mu.Unlock()
	for _, name := range differ {
		for _, tell := range changed {
			tell(name)
		}
	}
}
