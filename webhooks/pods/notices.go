package pods

import (
	"bytes"

	"github.com/sidecarset/operator/internal/events"
)

// tellNotices counts what an injected Pod does not get, and has Events written about the
// SidecarSets. A request that stores nothing does not count. A stranger may have sent the
// review, so the queue of the Events limits them, whatever the Pod says.
func (i *Injector) tellNotices(v *verdict, document []byte) {
	if v.result != resultInjected || len(v.plan.Notices) == 0 || bytes.Contains(document, dryRun) {
		return
	}
	namespace := v.by.namespace(&v.head)
	for _, n := range v.plan.Notices {
		i.metrics.notices[n.Kind].Inc()
		for _, program := range v.by.programs {
			if program.Name() == n.SidecarSet {
				i.options.RecordEvent(events.InjectionIncomplete(events.Of(program.Set), namespace, string(n.Kind), n.Text))
			}
		}
	}
}
