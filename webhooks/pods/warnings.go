package pods

import (
	"bytes"

	"github.com/sidecarset/operator/internal/events"
)

// tellWarnings counts what an injected Pod does not get, and has Events written about the
// SidecarSets. A request that stores nothing does not count. An unauthenticated client may have sent the
// review, so the queue of the Events limits them, whatever the Pod says.
func (i *Injector) tellWarnings(v *verdict, document []byte) {
	if v.result != resultInjected || len(v.plan.Warnings) == 0 || bytes.Contains(document, dryRun) {
		return
	}
	namespace := v.by.namespace(&v.head)
	for _, n := range v.plan.Warnings {
		i.metrics.warnings[n.Kind].Inc()
		for _, compiled := range v.by.sidecarSets {
			if compiled.Name() == n.SidecarSet {
				i.options.RecordEvent(events.InjectionIncomplete(events.Of(compiled.Set), namespace, string(n.Kind), n.Text))
			}
		}
	}
}
