package entryplan_test

import "maps"

// called names the wanted entries for whose Pods some entry of the operator calls it, and
// that the API server does not refuse.
func (w *world) called() map[string]bool {
	called := map[string]bool{}
	for _, c := range w.stored {
		for _, name := range podEntryNames(c) {
			hook := webhookOf(w.stored, name)
			service := hook.ClientConfig.Service
			if hook.ObjectSelector == nil || service == nil || service.Path == nil || *service.Path != "/pods" && *service.Path != "/pods/fresh" {
				continue
			}
			for _, e := range w.sets {
				if !w.refused[e.Name] && maps.Equal(hook.ObjectSelector.MatchLabels, e.Selector.MatchLabels) {
					called[e.Name] = true
				}
			}
		}
	}
	return called
}
