package registration

import (
	"time"

	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podsecurity"
)

// enforcing has the Namespaces that enforce Pod Security.
type enforcing struct {
	namespaces *podsecurity.Namespaces // nil before the first read
	store      *match.Snapshot         // from which they were read last
	at         time.Time
}

// enforcingAgain is the least time between two reads. All SidecarSets are judged again if one of these
// Namespaces has changed, which takes up to 150 ms if there are 10,000 of them and 500 SidecarSets
// that they refuse.
const enforcingAgain = time.Second

// observeEnforcing reads the Namespaces that enforce Pod Security, if they may have changed.
func (l *leader) observeEnforcing(v *view) {
	e := &l.enforcing
	if e.store == v.snapshot {
		return
	}
	if left := enforcingAgain - v.now.Sub(e.at); e.namespaces != nil && left > 0 {
		v.wakeAfter(left)
		return
	}
	e.store, e.at = v.snapshot, v.now
	if next := podsecurity.Read(v.snapshot, l.options.Settings.ExcludedNamespaces); e.namespaces == nil || !next.Same(e.namespaces) {
		e.namespaces = next
	}
}

// judgedSecurity is what Pod Security refuses of one SidecarSet, and in which Namespaces this was
// looked for.
type judgedSecurity struct {
	namespaces *podsecurity.Namespaces
	message    string
}

// podSecurity says in which Namespaces Pod Security refuses Pods with the sidecars; "" if in none.
// It judges again only what has changed: the revision, or a Namespace that enforces a level.
func (l *leader) podSecurity(one *storedSet) string {
	if namespaces := l.enforcing.namespaces; one.security.namespaces != namespaces {
		content := one.compiled
		if content.Bypassed() && one.history != nil {
			content = one.history
		}
		one.security = judgedSecurity{namespaces, podsecurity.Message(namespaces.Refusals(content, one.compiled))}
	}
	return one.security.message
}
