package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// process is one replica of the operator. Any of them may lead as well.
type process struct {
	w          *simulation
	name       string
	ended      bool
	sets, rest *follower
	namespace  types.UID // of the operator, as it knows it
	leader     *leader   // the last leader that this process was; nil if none

	// The snapshot, in versions by name. Deleted SidecarSets keep their version.
	snapshot map[string]*sidecarSet
	holds    map[string]uint64
	seen     map[string]bool // shortened UIDs of the SidecarSets that it has seen stored
	shards   [podwebhook.Shards]*podwebhook.Shard
	kept     [podwebhook.Shards]uint64 // the newest number whose dependencies the snapshot has observed
	waiting  []func() bool             // each is called when the snapshot changes, until it returns true
	underway map[string]record         // what reads have found whose answers are on their way
}

func (w *simulation) addProcess() {
	p := &process{
		w: w, name: fmt.Sprint("replica-", w.uids), namespace: w.namespace(), snapshot: map[string]*sidecarSet{}, holds: map[string]uint64{},
		seen: map[string]bool{}, shards: w.stored.shards, underway: map[string]record{},
	}
	w.uids++
	p.sets = &follower{w: w, wants: func(r record) bool { return r.set != "" }, learn: p.learn, longest: longest, learned: len(w.stored.log)}
	p.rest = &follower{w: w, wants: func(r record) bool { return r.set == "" }, learn: p.learn, longest: longest, learned: len(w.stored.log)}
	w.followers = append(w.followers, p.sets, p.rest)
	w.processes = append(w.processes, p)
	for name, s := range w.stored.sets {
		p.learn(record{set: name, after: s, version: s.version})
	}
}

// longest is how long a watch is silent until it is begun again.
const longest = 250 * time.Second

func (p *process) learn(r record) {
	switch {
	case r.set == "":
		p.take(r.index, r.shard)
		return
	case r.after == nil:
		delete(p.snapshot, r.set)
	default:
		p.snapshot[r.set] = r.after
		p.seen[r.after.dependency().UID] = true
	}
	p.holds[r.set] = r.version
	for i := range p.shards {
		p.keep(i)
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(done func() bool) bool { return done() })
	p.wake()
}

// take takes in a version of a shard, unless a newer one is known.
func (p *process) take(i int, s *podwebhook.Shard) {
	if known := p.shards[i]; known != nil && s != nil && known.Object.UID == s.Object.UID && known.Version >= s.Version {
		return
	}
	p.shards[i] = s
	p.keep(i)
	p.wake()
}

func (p *process) wake() {
	if p.leader != nil {
		p.leader.wakeAfter(5 * time.Millisecond)
	}
}

// held says whether the snapshot has observed a dependency: it has that UID in that generation or a later
// one, or this UID was seen stored and is gone.
func (p *process) held(n podwebhook.Dependency) bool {
	s := p.snapshot[n.Name]
	if s != nil && (s.dependency().UID == n.UID || p.w.wrong == ignoreUID) {
		return int64(s.gen) >= n.Generation
	}
	return p.seen[n.UID]
}

// keep raises the observed serial of a shard if the snapshot has observed what the known version needs.
func (p *process) keep(i int) {
	if s := p.shards[i]; s != nil && s.RequiredSerial > p.kept[i] && len(s.Unobserved(nil, p.held)) == 0 {
		p.kept[i] = s.RequiredSerial
	}
}

// after makes the process call do later, unless it has ended then.
func (p *process) after(d time.Duration, do func()) {
	p.w.after(d, func() {
		if !p.ended {
			do()
		}
	})
}

// call makes the API server call do for the process. The request or the answer may be slow, or get
// lost.
func (p *process) call(do func(), then func(ok bool)) {
	w := p.w
	way := func() time.Duration {
		d := w.between(500*time.Microsecond, 3*time.Millisecond)
		if w.chance(w.temper.slow) {
			d += w.lag(5 * time.Second)
		}
		return d
	}
	lost := w.faults && w.chance(1)
	w.after(way(), func() {
		if !lost {
			do()
		}
		ok := !lost && !(w.faults && w.chance(1))
		p.after(way(), func() { then(ok) })
	})
}

// read reads an object: a read that begins now. It finds an empty record if nothing is stored.
func (p *process) read(name string, then func(found record, ok bool)) {
	var o record
	p.call(func() {
		o.after = p.w.stored.sets[name]
		if i, ok := podwebhook.ShardNumber(name); ok {
			o.shard = p.w.stored.shards[i]
		}
		if earlier, ok := p.underway[name]; ok && p.w.wrong == joinRead {
			o = earlier
		}
		p.underway[name] = o
	}, func(ok bool) {
		delete(p.underway, name)
		then(o, ok)
	})
}

func (p *process) readShard(i int, then func(s *podwebhook.Shard, ok bool)) {
	p.read(podwebhook.ConfigurationName(i), func(o record, ok bool) {
		if ok {
			p.take(i, o.shard)
		}
		then(o.shard, ok && o.shard != nil)
	})
}

func (p *process) readSets(names []string, then func(found map[string]*sidecarSet, ok bool)) {
	found, left, all := map[string]*sidecarSet{}, len(names), true
	if left == 0 {
		then(found, true)
		return
	}
	for _, name := range names {
		p.read(name, func(o record, ok bool) {
			found[name] = o.after
			all = all && ok
			if left--; left == 0 {
				then(found, all)
			}
		})
	}
}

// know reads SidecarSets by name, and waits until the snapshot has what the reads showed.
func (p *process) know(names []string, deadline time.Duration, then func(ok bool)) {
	p.readSets(names, func(found map[string]*sidecarSet, ok bool) {
		then := once(then)
		done := func() bool {
			for name, s := range found {
				if s != nil && p.holds[name] < s.version {
					return false
				}
			}
			then(true)
			return true
		}
		if !ok {
			then(false)
		} else if !done() {
			p.waiting = append(p.waiting, done)
			p.after(deadline-p.w.now, func() { then(false) })
		}
	})
}

// answer answers one review of a Pod. It adds to what the Pod has already.
func (p *process) answer(path string, pod labels.Set, carried injected, deadline time.Duration, then func(ok bool)) {
	shard, number, _ := podwebhook.ParsePodsPath(path)
	inject := func(ok bool) { p.inject(ok, shard, pod, carried, nil, deadline, then) }
	by := func(s *podwebhook.Shard) {
		var names []string
		for _, n := range s.Unobserved(pod, p.held) {
			names = append(names, n.Name)
		}
		slices.Sort(names)
		p.know(slices.Compact(names), deadline, func(ok bool) {
			if ok && p.w.wrong == keepNotStored {
				p.kept[shard] = max(p.kept[shard], s.RequiredSerial)
			}
			inject(ok)
		})
	}
	switch s := p.shards[shard]; {
	case number <= p.kept[shard]:
		p.after(p.w.upTo(2*time.Millisecond), func() { inject(true) })
	case s != nil && (s.RequiredSerial >= number || p.w.wrong == staleDependencies):
		by(s)
	default:
		p.readShard(shard, func(s *podwebhook.Shard, ok bool) {
			if ok && s.Serial >= number {
				by(s)
			} else {
				then(false)
			}
		})
	}
}

// inject does what the engine does. A SidecarSet that an earlier call has injected with another
// content is injected again, after it was read by name: the earlier replica may know more. An
// injected SidecarSet that the snapshot lacks remains. It fails unless the replica knows enough.
func (p *process) inject(ok bool, shard int, pod labels.Set, carried injected, known []string, deadline time.Duration, then func(ok bool)) {
	if !ok {
		then(false)
		return
	}
	var unknown []string
	changes := injected{}
	for _, name := range slices.Sorted(maps.Keys(p.snapshot)) {
		s, had := p.snapshot[name], carried[name]
		differs := had != nil && (had.uid != s.uid || had.gen != s.gen)
		switch {
		case !pod.Has(s.value) || differs && p.w.wrong == ruleShard && s.webhook.Shard(p.namespace) != shard:
		case differs && !slices.Contains(known, name) && p.w.wrong != downgrade && p.w.wrong != ruleShard:
			unknown = append(unknown, name)
		default:
			changes[name] = s
		}
	}
	if len(unknown) == 0 {
		maps.Copy(carried, changes)
		then(true)
		return
	}
	p.know(unknown, deadline, func(ok bool) { p.inject(ok, shard, pod, carried, append(known, unknown...), deadline, then) })
}

func settingsOf(namespace types.UID) *podwebhook.Settings {
	return &podwebhook.Settings{
		Namespace: "ours", NamespaceUID: namespace, Bundle: []byte("bundle"), Ownerless: true,
		Service:            admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
		ExcludedNamespaces: []string{"kube-system", "ours"},
	}
}

// stores says whether the snapshot has the SidecarSet of a dependency, in any generation, with the
// selectors of a webhook.
func (p *process) stores(name string, n podwebhook.Dependency) bool {
	s := p.snapshot[n.Name]
	return s != nil && s.dependency().Is(n) && s.webhook.Name == name
}

// register makes API servers call the operator for a SidecarSet that is being admitted: it writes
// the dependency, and awaits the probe.
func (p *process) register(e podwebhook.Webhook, r *review, deadline time.Duration, then func(ok bool)) {
	shard := e.Shard(p.namespace)
	w, s := p.w, p.shards[shard]
	if s == nil || w.now > deadline {
		return
	}
	next, _ := w.wrong.spoil(s, &e).Review([]podwebhook.Webhook{e}, p.stores, 0, settingsOf(p.namespace))
	if next == nil {
		return
	}
	var now *podwebhook.Shard
	var written bool
	p.call(func() {
		if w.wrong == noAlwaysWrite && s.HasDependency(e.Name, e.Dependencies[0]) {
			now, written = s, true
		} else if now, written = w.putShard(next); !written {
			return
		}
		r.at, r.shard, r.inUse = w.now, now, nil
		for _, name := range slices.Sorted(maps.Keys(w.stored.sets)) {
			if other := w.stored.sets[name]; other.webhook.Name == e.Name && now.HasDependency(e.Name, other.dependency()) {
				r.inUse = other
			}
		}
	}, func(ok bool) {
		if !ok {
			return
		}
		if p.take(shard, now); !written {
			p.register(e, r, deadline, then)
			return
		}
		p.await(shard, e, now.Serial, deadline, then)
	})
}

// await asks all API servers until each uses a serial of a shard that has the dependency of a webhook: the
// newest one that the process knows.
func (p *process) await(i int, e podwebhook.Webhook, serial uint64, deadline time.Duration, then func(ok bool)) {
	if s := p.shards[i]; s != nil && s.HasDependency(e.Name, e.Dependencies[0]) {
		serial = max(serial, s.Serial)
	}
	p.ask(map[int]uint64{i: serial}, func(propagated map[int]bool) {
		switch {
		case propagated[i] || p.w.wrong == noProbe:
			then(true)
		case p.w.now < deadline:
			p.after(10*time.Millisecond, func() { p.await(i, e, serial, deadline, then) })
		}
	})
}

// ask asks all API servers whether they use serials, by shard.
func (p *process) ask(serials map[int]uint64, then func(propagated map[int]bool)) {
	propagated := map[int]bool{}
	p.call(func() {
		for i, serial := range serials {
			propagated[i] = !slices.ContainsFunc(p.w.servers, func(s *apiServer) bool { return !s.uses(i, serial) })
		}
	}, func(ok bool) {
		if !ok {
			propagated = nil
		}
		then(propagated)
	})
}
