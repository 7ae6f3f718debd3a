package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/entry"
)

// process is one replica of the operator. Any of them may lead as well.
type process struct {
	w          *world
	name       string
	ended      bool
	sets, rest *follower
	namespace  types.UID // of the operator, as it knows it
	leader     *leader   // the last leader that this process was; nil if none

	// The snapshot, in versions by name. Deleted SidecarSets keep their version.
	snapshot map[string]*sidecarSet
	holds    map[string]uint64
	seen     map[string]bool // shortened UIDs of the SidecarSets that it has seen stored
	slots    [entry.Slots]*entry.Slot
	kept     [entry.Slots]uint64 // the newest number whose needs the snapshot holds
	waiting  []func() bool       // each is called when the snapshot changes, until it returns true
	underway map[string]record   // what reads have found whose answers are on their way
}

func (w *world) addProcess() {
	p := &process{
		w: w, name: fmt.Sprint("replica-", w.uids), namespace: w.namespace(), snapshot: map[string]*sidecarSet{}, holds: map[string]uint64{},
		seen: map[string]bool{}, slots: w.stored.slots, underway: map[string]record{},
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

// longest is how long a watch is silent until it is begun anew.
const longest = 250 * time.Second

func (p *process) learn(r record) {
	switch {
	case r.set == "":
		p.take(r.index, r.slot)
		return
	case r.after == nil:
		delete(p.snapshot, r.set)
	default:
		p.snapshot[r.set] = r.after
		p.seen[r.after.need().UID] = true
	}
	p.holds[r.set] = r.version
	for i := range p.slots {
		p.keep(i)
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(done func() bool) bool { return done() })
	p.wake()
}

// take takes in a version of a slot, unless a newer one is known.
func (p *process) take(i int, s *entry.Slot) {
	if known := p.slots[i]; known != nil && s != nil && known.Object.UID == s.Object.UID && known.Version >= s.Version {
		return
	}
	p.slots[i] = s
	p.keep(i)
	p.wake()
}

func (p *process) wake() {
	if p.leader != nil {
		p.leader.wakeAfter(5 * time.Millisecond)
	}
}

// held says whether the snapshot holds a need: it has that UID in that generation or a later
// one, or this UID was seen stored and is gone.
func (p *process) held(n entry.Need) bool {
	s := p.snapshot[n.Name]
	if s != nil && (s.need().UID == n.UID || p.w.wrong == ignoreUID) {
		return int64(s.gen) >= n.Generation
	}
	return p.seen[n.UID]
}

// keep raises the kept number of a slot if the snapshot holds what the known version needs.
func (p *process) keep(i int) {
	if s := p.slots[i]; s != nil && s.PathSerial > p.kept[i] && len(s.Unheld(nil, p.held)) == 0 {
		p.kept[i] = s.PathSerial
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
		if i, ok := entry.Index(name); ok {
			o.slot = p.w.stored.slots[i]
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

func (p *process) readSlot(i int, then func(s *entry.Slot, ok bool)) {
	p.read(entry.ConfigurationName(i), func(o record, ok bool) {
		if ok {
			p.take(i, o.slot)
		}
		then(o.slot, ok && o.slot != nil)
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

// answer answers one review of a Pod. It adds to what the Pod carries already.
func (p *process) answer(path string, pod labels.Set, carried injected, deadline time.Duration, then func(ok bool)) {
	slot, number, _ := entry.ParsePodsPath(path)
	inject := func(ok bool) { p.inject(ok, slot, pod, carried, nil, deadline, then) }
	by := func(s *entry.Slot) {
		var names []string
		for _, n := range s.Unheld(pod, p.held) {
			names = append(names, n.Name)
		}
		slices.Sort(names)
		p.know(slices.Compact(names), deadline, func(ok bool) {
			if ok && p.w.wrong == keepNotStored {
				p.kept[slot] = max(p.kept[slot], s.PathSerial)
			}
			inject(ok)
		})
	}
	switch s := p.slots[slot]; {
	case number <= p.kept[slot]:
		p.after(p.w.upTo(2*time.Millisecond), func() { inject(true) })
	case s != nil && (s.PathSerial >= number || p.w.wrong == staleNeeds):
		by(s)
	default:
		p.readSlot(slot, func(s *entry.Slot, ok bool) {
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
func (p *process) inject(ok bool, slot int, pod labels.Set, carried injected, known []string, deadline time.Duration, then func(ok bool)) {
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
		case !pod.Has(s.value) || differs && p.w.wrong == ruleSlot && s.entry.Slot(p.namespace) != slot:
		case differs && !slices.Contains(known, name) && p.w.wrong != downgrade && p.w.wrong != ruleSlot:
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
	p.know(unknown, deadline, func(ok bool) { p.inject(ok, slot, pod, carried, append(known, unknown...), deadline, then) })
}

func settingsOf(namespace types.UID) *entry.Settings {
	return &entry.Settings{
		Namespace: "ours", NamespaceUID: namespace, Bundle: []byte("bundle"), Ownerless: true,
		Service:            admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
		ExcludedNamespaces: []string{"kube-system", "ours"},
	}
}

// stores says whether the snapshot has the SidecarSet of a need, in any generation, with the
// selectors of an entry.
func (p *process) stores(name string, n entry.Need) bool {
	s := p.snapshot[n.Name]
	return s != nil && s.need().Is(n) && s.entry.Name == name
}

// widen makes API servers call the operator for a SidecarSet that is being admitted: it writes
// the need, and awaits the barrier.
func (p *process) widen(e entry.Entry, r *review, deadline time.Duration, then func(ok bool)) {
	slot := e.Slot(p.namespace)
	w, s := p.w, p.slots[slot]
	if s == nil || w.now > deadline {
		return
	}
	next, _ := w.wrong.spoil(s, &e).Review([]entry.Entry{e}, p.stores, 0, settingsOf(p.namespace))
	if next == nil {
		return
	}
	var now *entry.Slot
	var written bool
	p.call(func() {
		if w.wrong == noAlwaysWrite && s.Holds(e.Name, e.Needs[0]) {
			now, written = s, true
		} else if now, written = w.putSlot(next); !written {
			return
		}
		r.at, r.slot, r.inUse = w.now, now, nil
		for _, name := range slices.Sorted(maps.Keys(w.stored.sets)) {
			if other := w.stored.sets[name]; other.entry.Name == e.Name && now.Holds(e.Name, other.need()) {
				r.inUse = other
			}
		}
	}, func(ok bool) {
		if !ok {
			return
		}
		if p.take(slot, now); !written {
			p.widen(e, r, deadline, then)
			return
		}
		p.await(slot, e, now.Serial, deadline, then)
	})
}

// await asks all API servers until each uses a serial of a slot that has the need of an entry: the
// newest one that the process knows.
func (p *process) await(i int, e entry.Entry, serial uint64, deadline time.Duration, then func(ok bool)) {
	if s := p.slots[i]; s != nil && s.Holds(e.Name, e.Needs[0]) {
		serial = max(serial, s.Serial)
	}
	p.ask(map[int]uint64{i: serial}, func(proven map[int]bool) {
		switch {
		case proven[i] || p.w.wrong == noBarrier:
			then(true)
		case p.w.now < deadline:
			p.after(10*time.Millisecond, func() { p.await(i, e, serial, deadline, then) })
		}
	})
}

// ask asks all API servers whether they use serials, by slot.
func (p *process) ask(serials map[int]uint64, then func(proven map[int]bool)) {
	proven := map[int]bool{}
	p.call(func() {
		for i, serial := range serials {
			proven[i] = !slices.ContainsFunc(p.w.servers, func(s *apiServer) bool { return !s.uses(i, serial) })
		}
	}, func(ok bool) {
		if !ok {
			proven = nil
		}
		then(proven)
	})
}
