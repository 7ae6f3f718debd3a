package protocol

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
)

// apiServer calls the operator by the entry objects that it knows.
type apiServer struct {
	w      *world
	name   string
	down   bool
	layout entryplan.Layout
	watch  *follower
}

// order is the order in which API servers call entries: by the names of the objects.
var order = func() (order []int) {
	for i := range len(entryplan.Layout{}) {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int {
		return strings.Compare(entryplan.ConfigurationName(a), entryplan.ConfigurationName(b))
	})
	return order
}()

func (w *world) addServer(i int) {
	s := &apiServer{w: w, name: fmt.Sprint("api-server-", i), layout: w.stored.configs}
	s.watch = &follower{
		w: w, name: s.name, active: func() bool { return true }, wants: func(r record) bool { return r.config != nil },
		learn: func(r record) {
			// See docs/design/0005. The API server uses the older copy until the object is
			// written again.
			if w.faults && w.chance(3) {
				w.note("%s compiles an older copy of object %d", s.name, r.index)
				return
			}
			s.layout[r.index] = r.config
		},
	}
	w.followers = append(w.followers, s.watch)
	w.servers = append(w.servers, s)
}

func (s *apiServer) serial(i int) int64 { return entryplan.Serial(s.layout[i]) }

func (s *apiServer) serials() []int64 {
	serials := make([]int64, len(s.layout))
	for i := range s.layout {
		serials[i] = s.serial(i)
	}
	return serials
}

// restart stops an API server. When it is up again, it knows what is stored then.
func (s *apiServer) restart(after time.Duration) {
	s.down = true
	s.w.note("%s is down", s.name)
	s.w.after(after, func() {
		s.down, s.layout, s.watch.learned, s.watch.stalled = false, s.w.stored.configs, len(s.w.stored.log), 0
		s.w.note("%s is up", s.name)
	})
}

// server returns an API server that is up; nil if none is.
func (w *world) server() *apiServer {
	up := slices.DeleteFunc(slices.Clone(w.servers), func(s *apiServer) bool { return s.down })
	if len(up) == 0 {
		return nil
	}
	return up[w.rng.IntN(len(up))]
}

// endpoint returns the replica that an API server calls. It may have ended a moment ago.
func (w *world) endpoint() *process {
	var some []*process
	for _, p := range w.processes {
		if !p.ended || w.faults && w.chance(3) {
			some = append(some, p)
		}
	}
	if len(some) == 0 {
		return w.processes[len(w.processes)-1]
	}
	return some[w.rng.IntN(len(some))]
}

// admit is the request of a client who creates a SidecarSet or updates it.
func (w *world) admit(name string, update bool) {
	old := w.stored.sets[name]
	if (old != nil) != update {
		return
	}
	next := sidecarSet{name: name, gen: 1, selected: 1}
	if update {
		next = *old
		next.gen, next.vouched = old.gen+1, 0
	} else {
		w.uids++
		next.uid = w.uids
		if !w.rules.oneObject {
			next.object = next.uid
		}
	}
	if !update || w.chance(15) {
		next.selected = next.gen
		if next.key, next.value = "app", fmt.Sprint("app-", w.rng.IntN(w.temper.values)); w.chance(40) {
			next.key, next.value = "tier", fmt.Sprint("tier-", w.rng.IntN(w.temper.values))
		}
		object := &appsv1beta1.SidecarSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1beta1.SidecarSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{next.key: next.value}}},
		}
		if w.chance(20) {
			object.Annotations = map[string]string{appsv1beta1.AnnotationFailurePolicy: "Ignore"}
		}
		entry, err := entryplan.Of(object)
		if err != nil {
			panic(err)
		}
		next.entry = entry
	}
	next.entry.Contents = map[string]string{name: next.content()}
	if old != nil && w.faults && w.chance(20) {
		// A stranger, or an API server that is behind, sends a review with the old content.
		entry := old.entry
		entry.Contents = map[string]string{name: old.content()}
		w.after(w.upTo(time.Second), func() { w.review(entry, func(bool, bool, map[int]uint64) {}) })
	}
	began := w.now
	w.note("a client writes %v, which selects %s", &next, next.value)
	w.review(next.entry, func(admitted, widened bool, wrote map[int]uint64) {
		if !admitted || w.faults && w.chance(8) {
			w.note("%v is refused", &next)
			return
		}
		w.after(w.storageDelay(), func() { w.store(next, old, began, widened, wrote) })
	})
}

// storageDelay is the time between a review and the write of the API server.
func (w *world) storageDelay() time.Duration {
	switch roll := w.rng.IntN(100); {
	case w.faults && w.chance(w.temper.late):
		if w.chance(50) {
			return w.between(storageFor-7*time.Second, storageFor-2*time.Second)
		}
		return w.upTo(storageFor - 2*time.Second)
	case !w.faults || roll < 85:
		return w.between(time.Millisecond, 20*time.Millisecond)
	default:
		return w.upTo(time.Second)
	}
}

// review sends a SidecarSet to a replica. The replica widens for half a second at most.
func (w *world) review(e entryplan.Entry, then func(admitted, widened bool, wrote map[int]uint64)) {
	p, wrote := w.endpoint(), map[int]uint64{}
	if w.hardened {
		w.after(2*time.Millisecond, func() { then(!p.ended, false, wrote) })
		return
	}
	over := false
	end := func(admitted, widened bool) {
		if !over {
			over = true
			then(admitted, widened, wrote)
		}
	}
	p.after(time.Millisecond, func() {
		p.widen(e, wrote, w.now+2*time.Second, func(ok bool) {
			if w.rules.neverWarn {
				ok = true
			}
			p.after(0, func() { end(true, ok) })
		})
		p.after(500*time.Millisecond, func() { end(true, w.rules.neverWarn) })
	})
	w.after(10*time.Second, func() { end(false, false) })
}

// store writes the admitted SidecarSet, if nothing else was written meanwhile, and answers the
// client.
func (w *world) store(next sidecarSet, old *sidecarSet, began time.Duration, widened bool, wrote map[int]uint64) {
	current := w.stored.sets[next.name]
	if (current == nil) != (old == nil) || old != nil && (current.uid != old.uid || current.gen != old.gen) {
		return // a conflict
	}
	if current != nil {
		next.ready = current.ready
	}
	// If the SidecarSet is stored late, its provisional entry may have been removed; see
	// docs/design/0008.
	late := wrote[entryplan.Provisional] > 0 && w.now-began > provisionalFor*9/10 && !w.rules.countLate
	if !late {
		for _, version := range wrote {
			if next.vouched == 0 || version < next.vouched {
				next.vouched = version
			}
		}
	}
	if w.temper.ambush {
		w.spring()
	}
	s := w.putSet(next)
	w.note("%v is stored; widened: %v, versions %v", s, widened, wrote)
	if !widened || late {
		w.counts.warnings++
		w.burst(s)
		return
	}
	w.after(w.between(time.Millisecond, 5*time.Millisecond), func() {
		w.counts.promises++
		w.promise(s, fmt.Sprintf("the author of %v is answered without a warning", s))
		w.createPod(s.value)
		w.createPod(s.value)
	})
}

// promise remembers that Pods must have a SidecarSet from now on, and creates some.
func (w *world) promise(s *sidecarSet, why string) {
	w.note("%s", why)
	w.promised[s.uid] = max(w.promised[s.uid], s.gen)
	w.burst(s)
}

// burst soon creates Pods that a SidecarSet selects.
func (w *world) burst(s *sidecarSet) {
	for _, within := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 25 * time.Second} {
		w.after(w.upTo(within), func() { w.createPod(s.value) })
	}
}

// afterNarrowing creates Pods when entries have left the fresh path: this is when a wrong
// protocol misses Pods.
func (w *world) afterNarrowing(before, after *configuration) {
	fresh := map[string]bool{}
	for i := range before.Webhooks {
		hook := &before.Webhooks[i]
		fresh[hook.Name] = *hook.ClientConfig.Service.Path == "/pods/fresh"
	}
	for i := range after.Webhooks {
		hook := &after.Webhooks[i]
		if fresh[hook.Name] && *hook.ClientConfig.Service.Path == "/pods" {
			w.counts.narrowed++
			w.note("%s is on /pods", hook.Name)
			for _, value := range hook.ObjectSelector.MatchLabels {
				for range 6 {
					w.after(w.upTo(20*time.Second), func() { w.createPod(value) })
				}
				for _, within := range []time.Duration{100 * time.Millisecond, 5 * time.Second, 20 * time.Second, 60 * time.Second} {
					w.after(w.upTo(within), func() { w.createPod(value) })
				}
			}
		}
	}
}

// obligation is a SidecarSet that a Pod must have, at least in a generation.
type obligation struct {
	*sidecarSet
	least int
	why   string
}

// obligations returns what a Pod must have if an API server receives its request now.
func (w *world) obligations(s *apiServer, labels map[string]string) (all []obligation) {
	for _, name := range slices.Sorted(maps.Keys(w.stored.sets)) {
		set := w.stored.sets[name]
		if !set.selects(labels) {
			continue
		}
		promised := w.promised[set.uid]
		switch {
		case promised >= set.gen:
			all = append(all, obligation{set, set.gen, "promised"})
			continue
		case set.vouched > 0 && s.calls(set):
			all = append(all, obligation{set, set.gen, "called for through its entry"})
			continue
		}
		if promised > 0 && promised >= set.selected {
			all = append(all, obligation{set, promised, "promised in an older content"})
		}
	}
	return all
}

// calls says whether an API server knows an entry for a SidecarSet, in a configuration that is
// not older than the one that the SidecarSet's review has written.
func (s *apiServer) calls(set *sidecarSet) bool {
	for _, c := range s.layout {
		if versionOf(c) >= set.vouched && slices.ContainsFunc(c.Webhooks, func(hook admissionregistrationv1.MutatingWebhook) bool {
			return hook.ObjectSelector.MatchLabels[set.key] == set.value
		}) {
			return true
		}
	}
	return false
}

// createPod is a request that creates a Pod, with the given label and one more.
func (w *world) createPod(value string) {
	s := w.server()
	if s == nil {
		return
	}
	key, _, _ := strings.Cut(value, "-")
	other := map[string]string{"app": "tier", "tier": "app"}[key]
	labels := map[string]string{key: value, other: fmt.Sprint(other, "-", w.rng.IntN(w.temper.values+1))}
	var hooks []*admissionregistrationv1.MutatingWebhook
	for _, i := range order {
		for at := range s.layout[i].Webhooks {
			hook := &s.layout[i].Webhooks[at]
			if strings.HasSuffix(hook.Name, ".pods.sidecarset.io") && matches(hook, labels) {
				hooks = append(hooks, hook)
			}
		}
	}
	w.counts.pods++
	w.counts.calls += len(hooks)
	pod := &pod{w: w, server: s, name: w.counts.pods, labels: labels, carried: injected{}, failed: map[string]bool{}, must: w.obligations(s, labels)}
	w.counts.obliged += len(pod.must)
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
	failed  map[string]bool // values that are selected by entries whose call failed and was ignored
	must    []obligation
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
			for _, value := range hook.ObjectSelector.MatchLabels {
				p.failed[value] = true
			}
		}
		over = true
		if w.tracing {
			p.log = append(p.log, fmt.Sprintf("%.3f %s on %s by %s answered %v: %v", w.now.Seconds(), hook.Name, path, replica.name, ok, p.carried))
		}
		p.callAll(hooks[1:])
	}
	w.after(w.between(500*time.Microsecond, 2*time.Millisecond), func() {
		carried := maps.Clone(p.carried)
		replica.after(0, func() {
			replica.answer(path == "/pods/fresh", p.labels, carried, func(ok bool) {
				if !over && ok {
					p.carried = carried
				}
				end(ok)
			})
		})
	})
	w.after(time.Duration(*hook.TimeoutSeconds)*time.Second, func() { end(false) })
}

// check reports a violation if the Pod lacks a SidecarSet that it must have.
func (p *pod) check() {
	for _, must := range p.must {
		now := p.w.stored.sets[must.name]
		if now == nil || now.uid != must.uid || !now.selects(p.labels) {
			continue // the SidecarSet is deleted meanwhile, or does not select the Pod any more
		}
		if p.failed[must.value] {
			p.w.counts.excused++
			continue // the failure policy allows such a Pod
		}
		if has := p.carried[must.name]; has == nil || has.uid < must.uid || has.uid == must.uid && has.gen < must.least {
			p.w.violation = fmt.Sprintf("Pod %d %v, created at %s, has %v instead of %v, which was %s", p.name, p.labels, p.server.name, has, must.sidecarSet, must.why)
			p.w.note("%s; calls: %s", p.w.violation, strings.Join(p.log, "; "))
		}
	}
}
