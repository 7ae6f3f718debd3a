package protocol

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entry"
)

// obligation is a SidecarSet that a Pod must have, at least in a generation.
type obligation struct {
	*sidecarSet
	least   int
	entries []string // any of these entries calls for it
	why     string
}

// obligations returns what a Pod must have if an API server receives its request now.
func (w *world) obligations(s *apiServer, labels map[string]string) (all []obligation) {
	for _, name := range slices.Sorted(maps.Keys(w.stored.sets)) {
		set := w.stored.sets[name]
		if !set.selects(labels) {
			continue
		}
		if s.calls(set) {
			all = append(all, obligation{set, set.gen, []string{set.entry.Name}, "called for through its entry"})
		}
		least := w.promised[set.uid]
		if least == 0 {
			continue
		}
		o, selects, back := obligation{sidecarSet: set, least: least, why: "promised"}, true, false
		for _, content := range w.contents(set.uid) {
			o.entries = append(o.entries, content.entry.Name)
			selects = selects && content.selects(labels)
			back = back || s.isBack(content.entry.Slot())
		}
		if selects && !back {
			all = append(all, o)
		}
	}
	return all
}

// calls says whether an API server calls for a SidecarSet, by a copy that is not older than the
// one that its review has written.
func (s *apiServer) calls(set *sidecarSet) bool {
	if set.vouched == nil || s.w.stored.wasReset(set.vouched) {
		return false
	}
	c := s.slots[set.vouched.Index]
	return c != nil && !s.w.stored.wasReset(c) && c.Version >= set.vouched.Version && c.Holds(set.entry.Name, set.need())
}

// createPod is a request that creates a Pod, with the given label and one more.
func (w *world) createPod(value string) {
	s := w.server()
	if s == nil {
		return
	}
	key, _, _ := strings.Cut(value, "-")
	labels := map[string]string{key: value}
	for range 3 {
		other := pick(w, w.temper.values)
		if key, _, _ := strings.Cut(other, "-"); labels[key] == "" {
			labels[key] = other
		}
	}
	var hooks []*admissionregistrationv1.MutatingWebhook
	for _, i := range order {
		if s.slots[i] == nil {
			continue
		}
		for at := range s.slots[i].Object.Webhooks {
			hook := &s.slots[i].Object.Webhooks[at]
			if strings.HasSuffix(hook.Name, ".pods.sidecarset.io") && matches(hook, labels) {
				hooks = append(hooks, hook)
			}
		}
	}
	w.counts.pods++
	w.counts.calls += len(hooks)
	pod := &pod{w: w, server: s, name: w.counts.pods, labels: labels, carried: injected{}, failed: map[string]bool{}, must: w.obligations(s, labels), slots: w.stored.slots}
	w.counts.obliged += len(pod.must)
	if w.faults && w.chance(5) { // another program's webhook is slow
		w.after(w.upTo(5*time.Second), func() { pod.callAll(hooks) })
		return
	}
	pod.callAll(hooks)
}

func matches(hook *admissionregistrationv1.MutatingWebhook, labels map[string]string) bool {
	for key, value := range hook.ObjectSelector.MatchLabels {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// pod is a Pod that is being created.
type pod struct {
	w       *world
	server  *apiServer
	name    int
	labels  map[string]string
	carried injected
	failed  map[string]bool // entries whose call failed and was ignored
	must    []obligation
	slots   [entry.Slots]*entry.Slot // as stored when it came
	log     []string
}

// callAll calls the entries one after the other.
func (p *pod) callAll(hooks []*admissionregistrationv1.MutatingWebhook) {
	w := p.w
	if len(hooks) == 0 {
		p.check()
		return
	}
	hook, replica := hooks[0], w.endpoint()
	path, over := *hook.ClientConfig.Service.Path, false
	end := func(ok bool) {
		switch {
		case over:
			return
		case !ok && *hook.FailurePolicy == admissionregistrationv1.Fail:
			over = true
			w.counts.refused++
			return
		case !ok:
			p.failed[hook.Name] = true
		}
		over = true
		if w.tracing {
			p.log = append(p.log, fmt.Sprintf("%.3f %s on %s by %s answered %v: %v", w.now.Seconds(), hook.Name, path, replica.name, ok, p.carried))
		}
		p.callAll(hooks[1:])
	}
	deadline := w.now + time.Duration(*hook.TimeoutSeconds)*time.Second
	w.after(w.between(500*time.Microsecond, 2*time.Millisecond), func() {
		carried := maps.Clone(p.carried)
		replica.after(0, func() {
			replica.answer(path, p.labels, carried, deadline, func(ok bool) {
				if !over && ok {
					p.carried = carried
				}
				end(ok)
			})
		})
	})
	w.after(deadline-w.now, func() { end(false) })
}

// check reports a violation if the Pod lacks a SidecarSet that it must have.
func (p *pod) check() {
	for _, must := range p.must {
		now := p.w.stored.sets[must.name]
		if now == nil || now.uid != must.uid || now.selected != must.selected {
			continue // the SidecarSet was deleted meanwhile, or has other selectors
		}
		if slices.ContainsFunc(must.entries, func(name string) bool { return p.failed[name] }) {
			p.w.counts.excused++
			continue // the failure policy allows such a Pod
		}
		if slices.ContainsFunc(must.entries, func(name string) bool { return p.lost(name, now) }) {
			continue
		}
		if has := p.carried[must.name]; has == nil || has.uid < must.uid || has.uid == must.uid && has.gen < must.least {
			p.w.violation = fmt.Sprintf("Pod %d %v, created at %s, has %v instead of %v, which was %s", p.name, p.labels, p.server.name, has, must.sidecarSet, must.why)
			p.w.note("%s; calls: %s", p.w.violation, strings.Join(p.log, "; "))
		}
	}
}

// lost says whether the Pod was on its way while its SidecarSet lost an entry: the slot was
// deleted, or the SidecarSet has moved to another entry. Then Pods follow the watch.
func (p *pod) lost(name string, s *sidecarSet) bool {
	i, n := entry.SlotOf(name), s.need()
	if n.Generation = 0; p.w.stored.wasReset(p.slots[i]) {
		return true
	}
	return name != s.entry.Name && p.slots[i].Holds(name, n) && !p.w.stored.slots[i].Holds(name, n)
}
