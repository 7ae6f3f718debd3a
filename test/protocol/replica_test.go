package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

// reading is what the two clocks of one machine show. The monotonic clock pauses while the
// machine pauses. An administrator can set the wall clock.
type reading struct{ mono, wall time.Duration }

// process is one replica of the operator. Any of them may lead as well.
type process struct {
	w     *world
	name  string
	ended bool
	// paused is the time until which the process or its machine pauses.
	paused  time.Duration
	drift   float64       // of its clocks
	lost    time.Duration // what the monotonic clock has missed
	set     time.Duration // by how much an administrator has set the wall clock
	watches []*follower
	leader  *leader // the last leader that this process was; nil if none

	excluded []string // namespaces, by its flags

	// The snapshot, in versions by name. Deleted SidecarSets keep their version.
	snapshot map[string]*sidecarSet
	holds    map[string]uint64
	synced   bool
	layout   entryplan.Layout
	serial   int64
	waiting  []func() bool // each is called when the snapshot changes, until it returns true

	// guess is the names of the SidecarSets that were read for the last Pod.
	guess []string

	// checked is when the last successful check began.
	checked *reading
}

func (w *world) addProcess() *process {
	p := &process{
		w: w, name: fmt.Sprint("replica-", len(w.processes)), snapshot: map[string]*sidecarSet{}, holds: map[string]uint64{},
		set: w.upTo(time.Hour),
	}
	if w.faults {
		p.drift = (w.rng.Float64() - 0.5) * 2 * maxDrift
	}
	active := func() bool { return p.paused <= w.now }
	sets := &follower{w: w, name: p.name + " SidecarSets", active: active, wants: func(r record) bool { return r.set != "" }, learn: p.learnSet}
	rest := &follower{w: w, name: p.name + " configurations", active: active, wants: func(r record) bool { return r.set == "" }, learn: p.learnRest}
	p.watches = []*follower{sets, rest}
	w.followers = append(w.followers, sets, rest)
	if w.rules.mixedFlags {
		p.excluded = []string{"kube-system", "ours"}[len(w.processes)%2:]
	}
	w.processes = append(w.processes, p)
	p.layout = w.stored.configs
	for _, c := range p.layout {
		p.serial = max(p.serial, entryplan.Serial(c))
	}
	rest.learned = len(w.stored.log)
	p.relistSets(0)
	p.synced = true
	w.note("%s begins", p.name)
	p.after(w.upTo(time.Second), p.keepChecking)
	return p
}

func (p *process) relistSets(pause time.Duration) {
	var objects []record
	for _, name := range slices.Sorted(maps.Keys(p.w.stored.sets)) {
		s := p.w.stored.sets[name]
		objects = append(objects, record{set: name, after: s, version: s.version})
	}
	for _, name := range slices.Sorted(maps.Keys(p.snapshot)) {
		if p.w.stored.sets[name] == nil {
			objects = append(objects, record{set: name, version: p.holds[name]})
		}
	}
	p.watches[0].relist(objects, pause)
}

func (p *process) learnSet(r record) {
	if r.after == nil {
		delete(p.snapshot, r.set)
		p.holds[r.set] = max(p.holds[r.set], r.version)
	} else {
		p.snapshot[r.set] = r.after
		p.holds[r.set] = r.after.version
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(done func() bool) bool { return done() })
	p.wake()
}

func (p *process) learnRest(r record) {
	p.learnConfig(r.index, r.config)
	p.wake()
}

func (p *process) learnConfig(i int, c *configuration) {
	p.serial = max(p.serial, entryplan.Serial(c))
	if versionOf(c) > versionOf(p.layout[i]) {
		p.layout[i] = c
	}
}

func (p *process) wake() {
	if p.leader != nil {
		p.leader.wake()
	}
}

// clock reads the clocks of the process's machine.
func (p *process) clock() reading {
	mono := time.Duration(float64(p.w.now-p.lost) * (1 + p.drift))
	return reading{mono, mono + p.lost + p.set}
}

// trusts says whether a check that began then still counts.
func (p *process) trusts(r reading) bool {
	now, rules := p.clock(), &p.w.rules
	monotonic, wall := now.mono-r.mono, now.wall-r.wall
	switch rules.clock {
	case wallOnly:
		return wall <= rules.trust
	case monoOnly:
		return monotonic <= rules.trust
	case largerClock:
		return max(monotonic, wall) <= rules.trust
	}
	return entryplan.Trusted(monotonic, wall, rules.trust)
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
		if w.chance(2) {
			there += w.upTo(2 * time.Second)
		}
		if w.chance(2) {
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

// freshFor bounds how long a Pod waits for the snapshot.
const freshFor = 3 * time.Second

// ensure makes sure that the snapshot holds every SidecarSet that is stored when it is
// called: it lists them, and waits until the snapshot holds each in that version. A
// success is a check by which the replica trusts its snapshot.
func (p *process) ensure(then func(ok bool)) {
	began, deadline := p.clock(), p.w.now+freshFor
	var list map[string]uint64
	p.call(func() {
		list = make(map[string]uint64, len(p.w.stored.sets))
		for name, s := range p.w.stored.sets {
			list[name] = s.version
		}
		if p.w.temper.ambush && p.paused <= p.w.now && p.w.chance(p.w.rules.stopInCheck) {
			p.w.note("%s is stopped in the middle of a check", p.name)
			p.paused = p.w.now + p.w.between(10*time.Second, 60*time.Second)
		}
	}, func(ok bool) {
		if !ok {
			then(false)
			return
		}
		p.waitFor(list, deadline, func(ok bool) {
			if ok && (p.checked == nil || began.mono > p.checked.mono) {
				p.checked = &began
			}
			then(ok)
		})
	})
}

// maxReads is how many SidecarSets a replica reads for a Pod.
const maxReads = 8

// know makes sure that the snapshot holds every SidecarSet that was stored when it was called:
// it uses the recorded names, or ensure. It follows Freshness.Know.
func (p *process) know(then func(ok bool)) {
	w, rules := p.w, &p.w.rules
	ensure := func() { w.counts.listed++; p.ensure(then) }
	if p.doubt() && !rules.namesWithoutTrust {
		ensure()
		return
	}
	reads := reads{}
	p.read(reads, p.guess)
	var annotations map[string]string
	p.call(func() {
		annotations = w.stored.configs[entryplan.Provisional].Annotations
		if w.temper.ambush && p.paused <= w.now && w.chance(rules.stopInCheck) {
			w.note("%s is stopped while it asks for names", p.name)
			p.paused = w.now + w.between(10*time.Second, 60*time.Second)
		}
	}, func(ok bool) {
		contents, complete := entryplan.Recent(annotations)
		if !ok || !complete || p.doubt() && !rules.namesWithoutTrust {
			ensure()
			return
		}
		for name := range contents {
			if rules.lastContent {
				contents[name] = w.reviewed[name]
			}
		}
		p.guess = nil
		for _, name := range slices.Sorted(maps.Keys(contents)) {
			if s := p.snapshot[name]; s == nil || contents[name] == "" || s.content() != contents[name] {
				p.guess = append(p.guess, name)
			}
		}
		unknown := p.guess
		switch {
		case len(unknown) == 0 || rules.skipsNames:
			w.counts.named++
			then(true)
		case len(unknown) > maxReads:
			ensure()
		default:
			p.read(reads, unknown)
			p.gather(reads, unknown, func(versions map[string]uint64, ok bool) {
				if !ok {
					ensure()
					return
				}
				w.counts.read++
				p.waitFor(versions, w.now+freshFor, then)
			})
		}
	})
}

// reads are requests for SidecarSets, by name.
type reads map[string]*question

type question struct {
	version  uint64 // 0 if it is not stored
	over, ok bool
	answered func()
}

// read requests SidecarSets by name, unless they have been requested before.
func (p *process) read(r reads, names []string) {
	for _, name := range names {
		if r[name] != nil {
			continue
		}
		q := &question{answered: func() {}}
		r[name] = q
		p.call(func() {
			if s := p.w.stored.sets[name]; s != nil {
				q.version = s.version
			}
		}, func(ok bool) {
			q.over, q.ok = true, ok
			q.answered()
		})
	}
}

// gather waits for the answers about SidecarSets.
func (p *process) gather(r reads, names []string, then func(versions map[string]uint64, ok bool)) {
	versions, all := map[string]uint64{}, true
	for _, name := range names {
		q := r[name]
		if !q.over {
			q.answered = func() { p.gather(r, names, then) }
			return
		}
		versions[name] = q.version
		all = all && q.ok
	}
	then(versions, all)
}

// waitFor waits until the snapshot holds SidecarSets in these versions.
func (p *process) waitFor(versions map[string]uint64, deadline time.Duration, then func(ok bool)) {
	over := false
	done := func() bool {
		if over {
			return true
		}
		for name, version := range versions {
			if p.holds[name] < version {
				return false
			}
		}
		over = true
		then(true)
		return true
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

// keepChecking checks the snapshot again and again: so a replica certifies itself.
func (p *process) keepChecking() {
	p.ensure(func(bool) {})
	p.after(checkInterval, p.keepChecking)
}

// doubt says whether the replica must check before it answers.
func (p *process) doubt() bool {
	return !p.w.rules.neverDoubt && (p.checked == nil || !p.trusts(*p.checked))
}

// injected is what a Pod carries: the content by SidecarSet.
type injected map[string]*sidecarSet

// answer answers one review of a Pod. It adds to what the Pod carries already.
func (p *process) answer(fresh bool, labels map[string]string, carried injected, then func(ok bool)) {
	if fresh && !p.w.rules.freshIsPlain || p.doubt() {
		p.know(func(ok bool) {
			if ok {
				p.inject(labels, carried)
			}
			then(ok)
		})
		return
	}
	p.after(p.w.upTo(2*time.Millisecond), func() {
		if p.w.rules.checkReplacements && p.replaces(labels, carried) {
			p.answer(true, labels, carried, then)
			return
		}
		p.inject(labels, carried)
		then(true)
	})
}

// replaces says whether the answer would take back what an earlier call has injected.
func (p *process) replaces(labels map[string]string, carried injected) bool {
	for name, s := range p.snapshot {
		if had := carried[name]; had != nil && s.selects(labels) && (had.uid != s.uid || had.gen != s.gen) {
			return true
		}
	}
	return false
}

// inject does what the engine does. A SidecarSet that an earlier call has injected with another
// content is injected again. An injected SidecarSet that the snapshot lacks remains.
func (p *process) inject(labels map[string]string, carried injected) {
	for name, s := range p.snapshot {
		if s.selects(labels) {
			carried[name] = s
		}
	}
}

func (p *process) settings() *entryplan.Settings {
	return &entryplan.Settings{
		Namespace: "ours", NamespaceUID: "uid-ours", Bundle: []byte("bundle"),
		Service:   admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
		MinSerial: max(int64(p.clock().wall/time.Millisecond), p.serial+1),
		// Processes differ in their flags while these are rolled out.
		ExcludedNamespaces: p.excluded,
	}
}

// send carries out changes in their order. A change that was planned from an older object is not
// written, and the process learns of the newer object. wrote gets the written versions.
func (p *process) send(changes []entryplan.Change, wrote map[int]uint64, then func(ok, stale bool)) {
	if len(changes) == 0 {
		then(true, false)
		return
	}
	change := changes[0]
	var now *configuration
	var written bool
	p.call(func() { now, written = p.w.putConfig(change) }, func(ok bool) {
		if !ok {
			then(false, false)
			return
		}
		p.learnConfig(change.Index, now)
		if written {
			wrote[change.Index] = versionOf(now)
		}
		p.send(changes[1:], wrote, func(ok, stale bool) { then(ok, stale || !written) })
	})
}

// widen makes API servers call the operator for a SidecarSet that is being admitted. It follows
// Keeper.Widen of package entries.
func (p *process) widen(e entryplan.Entry, wrote map[int]uint64, deadline time.Duration, then func(ok bool)) {
	settings := p.settings()
	changes, unplaced := entryplan.Widen(p.layout, []entryplan.Entry{e}, settings)
	if len(unplaced) > 0 || p.w.now > deadline {
		then(false)
		return
	}
	p.sendNamed(changes, wrote, func(ok, stale bool) {
		switch {
		case !ok:
			then(false)
		case stale:
			p.widen(e, wrote, deadline, then)
		default:
			maps.Copy(p.w.reviewed, e.Contents)
			i, ok := p.layout.Serves(e, settings)
			if !ok {
				then(false)
				return
			}
			p.await(i, entryplan.Serial(p.layout[i]), deadline, then)
		}
	})
}

// sendNamed carries out the changes of a review. The first one records the names. If it is not
// written, the others are not written either.
func (p *process) sendNamed(changes []entryplan.Change, wrote map[int]uint64, then func(ok, stale bool)) {
	rules := &p.w.rules
	named := len(changes) > 1 && changes[0].Index == entryplan.Provisional
	switch {
	case named && rules.namesNothing:
		p.send(changes[1:], wrote, then)
	case named && rules.namesAtLast:
		p.send(append(slices.Clone(changes[1:]), changes[0]), wrote, then)
	case named:
		p.send(changes[:1], map[int]uint64{}, func(ok, stale bool) {
			if !ok || stale {
				then(ok, stale)
				return
			}
			p.send(changes[1:], wrote, then)
		})
	default:
		p.send(changes, wrote, then)
	}
}

// await asks all API servers that are up until each uses a serial.
func (p *process) await(i int, serial int64, deadline time.Duration, then func(ok bool)) {
	all := true
	p.call(func() {
		for _, s := range p.w.servers {
			all = all && (s.down || s.serial(i) >= serial)
		}
	}, func(ok bool) {
		switch {
		case ok && all:
			then(true)
		case p.w.now > deadline:
			then(false)
		default:
			p.after(10*time.Millisecond, func() { p.await(i, serial, deadline, then) })
		}
	})
}
