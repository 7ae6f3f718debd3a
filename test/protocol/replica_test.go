package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/entry"
)

// process is one replica of the operator. Any of them may lead as well.
type process struct {
	w      *world
	name   string
	ended  bool
	paused time.Duration // the time until which the process or its machine pauses
	sets   *follower
	rest   *follower
	leader *leader // the last leader that this process was; nil if none

	excluded []string // namespaces, by its flags

	// The snapshot, in versions by name. Deleted SidecarSets keep their version.
	snapshot map[string]*sidecarSet
	holds    map[string]uint64
	seen     map[string]bool // shortened UIDs of the SidecarSets that it has seen stored
	slots    [entry.Slots]*entry.Slot
	kept     [entry.Slots]uint64 // the newest number whose needs the snapshot holds
	waiting  []func() bool       // each is called when the snapshot changes, until it returns true
	reading  map[string]*reading // for a replica that shares reads
}

func (w *world) addProcess() *process {
	p := &process{
		w: w, name: fmt.Sprint("replica-", len(w.processes)), snapshot: map[string]*sidecarSet{}, holds: map[string]uint64{},
		seen: map[string]bool{}, slots: w.stored.slots, excluded: []string{"kube-system", "ours"}, reading: map[string]*reading{},
	}
	p.sets = &follower{w: w, name: p.name + " SidecarSets", p: p, wants: func(r record) bool { return r.set != "" }, learn: p.learnSet}
	p.rest = &follower{w: w, name: p.name + " slots", p: p, wants: func(r record) bool { return r.set == "" }, learn: p.learnSlot}
	w.followers = append(w.followers, p.sets, p.rest)
	if w.rules.mixedFlags {
		p.excluded = p.excluded[len(w.processes)%2:]
	}
	w.processes = append(w.processes, p)
	p.rest.learned = len(w.stored.log)
	p.relistSets(0)
	w.note("%s begins", p.name)
	return p
}

// recent returns one of the youngest processes.
func (w *world) recent() *process {
	return w.processes[len(w.processes)-1-w.rng.IntN(min(3, len(w.processes)))]
}

func (p *process) leads() bool { return p.leader != nil && !p.leader.ended }

func (p *process) relistSets(pause time.Duration) {
	var objects []record
	for _, name := range slices.Sorted(maps.Keys(p.w.stored.sets)) {
		s := p.w.stored.sets[name]
		objects = append(objects, record{set: name, after: s, version: s.version})
	}
	for _, name := range slices.Sorted(maps.Keys(p.snapshot)) {
		if p.w.stored.sets[name] == nil {
			objects = append(objects, record{set: name, version: p.holds[name] + 1})
		}
	}
	p.sets.relist(objects, pause)
}

func (p *process) learnSet(r record) {
	if r.after == nil {
		delete(p.snapshot, r.set)
		p.holds[r.set] = max(p.holds[r.set], r.version)
	} else {
		p.snapshot[r.set] = r.after
		p.holds[r.set] = r.after.version
		p.seen[r.after.need().UID] = true
	}
	for i := range p.slots {
		p.keep(i)
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(done func() bool) bool { return done() })
	p.wake()
}

func (p *process) learnSlot(r record) {
	p.slots[r.index] = r.slot
	p.keep(r.index)
	p.wake()
}

// take takes in a version of a slot that was read or written, as Slots of package entries does.
func (p *process) take(i int, s *entry.Slot) {
	known := p.slots[i]
	if s == nil || known != nil && known.Object.UID == s.Object.UID && known.Version >= s.Version {
		return
	}
	p.slots[i] = s
	p.keep(i)
	p.wake()
}

func (p *process) wake() {
	if p.leader != nil {
		p.leader.wake()
	}
}

// held says whether the snapshot holds a need: it has that UID in that generation or a later
// one, or this UID was seen stored and is gone.
func (p *process) held(n entry.Need) bool {
	s := p.snapshot[n.Name]
	if s != nil && (s.need().UID == n.UID || p.w.rules.ignoreUID) {
		return int64(s.gen) >= n.Generation
	}
	return p.seen[n.UID]
}

// keep raises the kept number of a slot if the snapshot holds what the known version needs.
func (p *process) keep(i int) {
	if s := p.slots[i]; s != nil && s.Number > p.kept[i] && len(s.Unheld(nil, p.held)) == 0 {
		p.kept[i] = s.Number
	}
}

// after makes the process call do later, unless it has ended then. A process that pauses does it
// when it runs again.
func (p *process) after(d time.Duration, do func()) {
	p.w.after(d, func() {
		switch {
		case p.ended:
		case p.paused > p.w.now:
			p.after(p.paused-p.w.now, do)
		default:
			do()
		}
	})
}

// call makes the API server call do for the process. A request that was sent is carried out even
// if the process pauses. The request or the answer may be lost.
func (p *process) call(do func(), then func(ok bool)) {
	w := p.w
	there, back := w.between(500*time.Microsecond, 3*time.Millisecond), w.between(500*time.Microsecond, 3*time.Millisecond)
	fate := 100
	if w.faults {
		if w.chance(w.temper.slow) {
			there += w.upTo(2 * time.Second)
		}
		if w.chance(w.temper.slow) {
			back += w.upTo(2 * time.Second)
		}
		fate = w.rng.IntN(100)
	}
	if fate == 0 {
		p.after(there+back, func() { then(false) })
		return
	}
	w.after(there, func() {
		do()
		p.after(back, func() { then(fate != 1) })
	})
}

// reading is a read of one object that is on its way. It has what the object was; nil if it was
// not stored.
type reading struct {
	set  *sidecarSet
	slot *entry.Slot
	then []func(ok bool)
}

// read reads an object: a read that begins now, unless the replica makes the mistake to share
// those that have begun.
func (p *process) read(name string, do func(*reading), then func(r *reading, ok bool)) {
	if r := p.reading[name]; r != nil && p.w.rules.joinRead {
		r.then = append(r.then, func(ok bool) { then(r, ok) })
		return
	}
	r := &reading{}
	r.then = append(r.then, func(ok bool) { then(r, ok) })
	p.reading[name] = r
	p.call(func() { do(r) }, func(ok bool) {
		if p.reading[name] == r {
			delete(p.reading, name)
		}
		for _, then := range r.then {
			then(ok)
		}
	})
}

func (p *process) readSlot(i int, then func(s *entry.Slot, ok bool)) {
	p.read(entry.ConfigurationName(i), func(r *reading) { r.slot = p.w.stored.slots[i] }, func(r *reading, ok bool) {
		if ok {
			p.take(i, r.slot)
		}
		then(r.slot, ok && r.slot != nil)
	})
}

func (p *process) readSets(names []string, then func(found map[string]*sidecarSet, ok bool)) {
	found, left, all := map[string]*sidecarSet{}, len(names), true
	if left == 0 {
		then(found, true)
		return
	}
	for _, name := range names {
		p.read(name, func(r *reading) { r.set = p.w.stored.sets[name] }, func(r *reading, ok bool) {
			found[name] = r.set
			all = all && ok
			if left--; left == 0 {
				then(found, all)
			}
		})
	}
}

// know reads SidecarSets by name, and waits until the snapshot has what the reads showed. If one
// is not stored, the snapshot has to have none, or to have learned of that name since.
func (p *process) know(names []string, deadline time.Duration, then func(ok bool)) {
	before := maps.Clone(p.holds)
	p.readSets(names, func(found map[string]*sidecarSet, ok bool) {
		if !ok {
			then(false)
			return
		}
		p.wait(deadline, func() bool {
			for name, s := range found {
				if s != nil && p.holds[name] < s.version || s == nil && p.snapshot[name] != nil && p.holds[name] == before[name] {
					return false
				}
			}
			return true
		}, then)
	})
}

// wait waits until a condition holds, which depends on the snapshot.
func (p *process) wait(deadline time.Duration, condition func() bool, then func(ok bool)) {
	over := false
	done := func() bool {
		if !over && condition() {
			over = true
			then(true)
		}
		return over
	}
	if done() {
		return
	}
	p.waiting = append(p.waiting, done)
	p.after(max(deadline-p.w.now, 0), func() {
		if !over {
			over = true
			then(false)
		}
	})
}

// injected is what a Pod carries: the content by SidecarSet.
type injected map[string]*sidecarSet

// answer answers one review of a Pod. It adds to what the Pod carries already.
func (p *process) answer(path string, pod map[string]string, carried injected, deadline time.Duration, then func(ok bool)) {
	slot, number, ok := entry.ParsePodsPath(path)
	if !ok {
		panic(path)
	}
	p.ensure(slot, number, pod, deadline, func(ok bool) {
		if !ok {
			then(false)
			return
		}
		p.inject(slot, pod, carried, map[string]bool{}, deadline, then)
	})
}

// ensure makes sure that the replica knows what a call requires it to know.
func (p *process) ensure(slot int, number uint64, pod map[string]string, deadline time.Duration, then func(ok bool)) {
	if number <= p.kept[slot] {
		p.after(p.w.upTo(2*time.Millisecond), func() { then(true) })
		return
	}
	p.w.counts.read++
	rules := &p.w.rules
	by := func(s *entry.Slot) {
		needed := map[string]bool{}
		for _, n := range s.Unheld(labels.Set(pod), p.held) {
			needed[n.Name] = true
		}
		p.know(slices.Sorted(maps.Keys(needed)), deadline, func(ok bool) {
			if ok && rules.keepNotStored {
				p.kept[slot] = max(p.kept[slot], s.Number)
			}
			then(ok)
		})
	}
	if s := p.slots[slot]; rules.staleNeeds && s != nil {
		by(s)
		return
	}
	p.readSlot(slot, func(s *entry.Slot, ok bool) {
		if !ok || s.Serial < number {
			then(false)
			return
		}
		by(s)
	})
}

// inject does what the engine does. A SidecarSet that an earlier call has injected with another
// content is injected again, after it was read by name: the earlier replica may know more. An
// injected SidecarSet that the snapshot lacks remains.
func (p *process) inject(slot int, pod map[string]string, carried injected, known map[string]bool, deadline time.Duration, then func(ok bool)) {
	var unknown []string
	changes := injected{}
	for _, name := range slices.Sorted(maps.Keys(p.snapshot)) {
		s, had := p.snapshot[name], carried[name]
		differs := had != nil && (had.uid != s.uid || had.gen != s.gen)
		switch {
		case !s.selects(pod) || differs && p.w.rules.ruleSlot && s.entry.Slot() != slot:
		case differs && !known[name] && !p.w.rules.downgrade && !p.w.rules.ruleSlot:
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
	p.know(unknown, deadline, func(ok bool) {
		if !ok {
			then(false)
			return
		}
		for _, name := range unknown {
			known[name] = true
		}
		p.inject(slot, pod, carried, known, deadline, then)
	})
}

func (p *process) settings() *entry.Settings {
	return &entry.Settings{
		Namespace: "ours", NamespaceUID: "uid-ours", Bundle: []byte("bundle"),
		Service:            admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
		ExcludedNamespaces: p.excluded,
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
	w, i := p.w, e.Slot()
	s, elsewhere := p.slots[i], 0
	if s == nil || w.now > deadline {
		then(false)
		return
	}
	if w.rules.noAlwaysWrite && s.Holds(e.Name, e.Needs[0]) {
		r.wrote(w, s, &e)
		p.await(e, s.Serial, deadline, then)
		return
	}
	for j, other := range p.slots {
		if j != i && other != nil {
			elsewhere += len(other.Unstored(p.stores))
		}
	}
	next, _ := s.Review([]entry.Entry{e}, p.stores, elsewhere, p.settings())
	if next == nil {
		then(false)
		return
	}
	next = w.rules.reviewed(s, next, &e)
	var now *entry.Slot
	var written bool
	p.call(func() {
		if now, written = w.putSlot(i, next); written {
			r.wrote(w, now, &e)
		}
	}, func(ok bool) {
		if !ok {
			then(false)
			return
		}
		p.take(i, now)
		if !written {
			p.widen(e, r, deadline, then)
			return
		}
		p.await(e, now.Serial, deadline, then)
	})
}

// await asks all API servers that are up until each uses a serial of a slot that has the need of
// an entry: the newest one that the process knows.
func (p *process) await(e entry.Entry, serial uint64, deadline time.Duration, then func(ok bool)) {
	i := e.Slot()
	if s := p.slots[i]; s != nil && s.Holds(e.Name, e.Needs[0]) {
		serial = max(serial, s.Serial)
	}
	p.ask(map[int]uint64{i: serial}, func(proven map[int]bool) {
		switch {
		case proven[i] || p.w.rules.noBarrier:
			then(true)
		case p.w.now > deadline:
			then(false)
		default:
			p.after(10*time.Millisecond, func() { p.await(e, serial, deadline, then) })
		}
	})
}

// ask asks all API servers that are up whether they use serials, by slot.
func (p *process) ask(serials map[int]uint64, then func(proven map[int]bool)) {
	proven := map[int]bool{}
	p.call(func() {
		for i, serial := range serials {
			up := 0
			proven[i] = true
			for _, s := range p.w.servers {
				if !s.down {
					up++
					proven[i] = proven[i] && s.uses(i, serial)
				}
			}
			proven[i] = proven[i] && up > 0
		}
	}, func(ok bool) {
		if !ok {
			proven = nil
		}
		then(proven)
	})
}
