package protocol

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// obligation is a SidecarSet that a Pod must have, at least in a generation. It may lack it only if
//
//   - the SidecarSet was deleted, or moved to another webhook, while the Pod was on its way;
//   - the call of its webhook failed, and the webhook has the policy Ignore;
//   - its shard was deleted after the promise;
//   - it was stored later than 2 s after its review, or 90 s for selectors in use (see review);
//   - the API server has gone back, and leaders have not found that three times yet.
type obligation struct {
	*sidecarSet
	least    int
	webhooks []string // any of these webhooks calls for it
	why      string
}

// obligations returns what a Pod must have if an API server receives its request now: what that API
// server calls for, by a copy that is not older than the one that the SidecarSet's review has
// written; and what was promised, unless the API server has gone back.
func (w *simulation) obligations(s *apiServer, pod labels.Set) (all []obligation) {
	for _, name := range slices.Sorted(maps.Keys(w.stored.sets)) {
		set := w.stored.sets[name]
		if at := set.vouched; pod.Has(set.value) && !w.wasReset(at) {
			if c := s.shards[at.Index]; !w.wasReset(c) && c.Version >= at.Version && c.HasDependency(set.webhook.Name, set.dependency()) {
				all = append(all, obligation{set, set.gen, []string{set.webhook.Name}, "called for through its webhook"})
			}
		}
		o := obligation{set, w.promised[set.uid], nil, "promised"}
		due := o.least > 0
		for _, content := range w.since(set.uid, o.least) {
			o.webhooks = append(o.webhooks, content.webhook.Name)
			due = due && pod.Has(content.value) && !slices.ContainsFunc(w.shardsOf(content.webhook.Name), s.isBack)
		}
		if due {
			all = append(all, o)
		}
	}
	return all
}

// since returns the contents that a SidecarSet has had, from a generation on.
func (w *simulation) since(uid, gen int) (contents []*sidecarSet) {
	for _, s := range w.past {
		if s.uid == uid && s.gen >= gen {
			contents = append(contents, s)
		}
	}
	return contents
}

// injected is what a Pod has: the content by SidecarSet.
type injected map[string]*sidecarSet

// pod is a Pod that is being created.
type pod struct {
	w       *simulation
	server  *apiServer
	labels  labels.Set
	carried injected
	failed  []string // webhooks whose call failed and was ignored
	must    []obligation
	shards  [podwebhook.Shards]*podwebhook.Shard // as stored when it came
	log     []string
}

// createPod is a request that creates a Pod, with the given label and maybe more.
func (w *simulation) createPod(value string) {
	s := pick(w, w.servers)
	p := &pod{w: w, server: s, labels: labels.Set{value: "yes"}, carried: injected{}, shards: w.stored.shards}
	for _, other := range w.temper.values {
		if w.chance(60) {
			p.labels[other] = "yes"
		}
	}
	p.must = w.obligations(s, p.labels)
	w.counts["Pods"]++
	w.counts["obligations"] += len(p.must)
	var hooks []*admissionregistrationv1.MutatingWebhook
	for _, shard := range s.shards {
		for at := 0; shard != nil && at < len(shard.Object.Webhooks); at++ {
			if hook := &shard.Object.Webhooks[at]; strings.HasSuffix(hook.Name, ".pods.sidecarset.io") && labels.SelectorFromSet(hook.ObjectSelector.MatchLabels).Matches(p.labels) {
				hooks = append(hooks, hook)
			}
		}
	}
	delay := time.Duration(0)
	if w.faults && w.chance(5) { // another program's webhook is slow
		delay = w.upTo(5 * time.Second)
	}
	w.after(delay, func() { p.callAll(hooks) })
}

// callAll calls the webhooks one after the other.
func (p *pod) callAll(hooks []*admissionregistrationv1.MutatingWebhook) {
	if len(hooks) == 0 {
		p.check()
		return
	}
	w, hook, replica, carried := p.w, hooks[0], pick(p.w, p.w.processes), maps.Clone(p.carried)
	path, deadline := *hook.ClientConfig.Service.Path, w.now+time.Duration(*hook.TimeoutSeconds)*time.Second
	end := once(func(ok bool) {
		if w.tracing {
			p.log = append(p.log, fmt.Sprintf("%.3f %s on %s by %s answered %v: %v", w.now.Seconds(), hook.Name, path, replica.name, ok, carried))
		}
		switch {
		case ok:
			p.carried = carried
		case *hook.FailurePolicy == admissionregistrationv1.Fail:
			w.counts["refused Pods"]++
			return
		default:
			p.failed = append(p.failed, hook.Name)
		}
		p.callAll(hooks[1:])
	})
	replica.after(w.between(500*time.Microsecond, 2*time.Millisecond), func() {
		replica.answer(path, p.labels, carried, deadline, func(ok bool) { end(ok && !replica.ended) })
	})
	w.after(deadline-w.now, func() { end(false) })
}

// check reports a violation if the Pod lacks a SidecarSet that it must have.
func (p *pod) check() {
	for _, must := range p.must {
		now, has := p.w.stored.sets[must.name], p.carried[must.name]
		switch {
		case has != nil && (has.uid > must.uid || has.uid == must.uid && has.gen >= must.least):
		case now == nil || now.uid != must.uid || now.since != must.since: // it was deleted meanwhile, or has moved
		case slices.ContainsFunc(must.webhooks, func(name string) bool { return slices.Contains(p.failed, name) }): // as the failure policy says
			p.w.counts["left out by the policy"]++
		case slices.ContainsFunc(must.webhooks, func(name string) bool { return p.lost(name, now) }):
			p.w.counts["left out by a move"]++
		default:
			p.w.violation = fmt.Sprintf("a Pod %v, created at %s, has %v instead of %v, which was %s", p.labels, p.server.name, has, must.sidecarSet, must.why)
			p.w.note("%s; calls: %s", p.w.violation, strings.Join(p.log, "; "))
		}
	}
}

// lost says whether the Pod was on its way while its SidecarSet lost a webhook: the shard was
// deleted, or the SidecarSet has moved to another webhook or shard. Then Pods follow the watch.
func (p *pod) lost(name string, s *sidecarSet) bool {
	n := s.dependency()
	n.Generation = 0
	return slices.ContainsFunc(p.w.shardsOf(name), func(i int) bool {
		before := p.shards[i]
		if before != nil && !before.HasDependency(name, n) {
			return false
		}
		return p.w.wasReset(before) || !p.w.stored.shards[i].HasDependency(name, n)
	})
}
