package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/entry"
)

// leader keeps the slots as the stored SidecarSets need them, and writes the condition Ready.
type leader struct {
	p       *process
	ended   bool
	busy    bool
	planned bool // a pass is planned
	again   bool
	passes  int

	reviews entry.Reviews
	first   map[string]time.Time // first sight of needs, for a leader that starts no timer anew
	proven  [entry.Slots]uint64  // serials that all API servers were seen to use
	anew    [entry.Slots]bool    // slots to be written although nothing differs
	tries   [entry.Slots]int     // how often a slot was written anew without a proof
	idle    [entry.Slots]idle
}

// idle is the state in which a slot needed no write. Planning is most of what a run costs.
type idle struct {
	slot *entry.Slot
	sets map[string]*sidecarSet
}

// elect makes a process the leader. The leader before it may still lead for a while.
func (w *world) elect() {
	var alive []*process
	for _, p := range w.processes {
		if !p.ended {
			alive = append(alive, p)
			if old := p.leader; old != nil && !old.ended {
				overlap := time.Duration(0)
				if w.faults && w.chance(50) {
					overlap = w.upTo(20 * time.Second)
				}
				p.after(overlap, func() { old.ended = true })
			}
		}
	}
	p := pick(w, alive)
	if p.leader != nil {
		p.leader.ended = true
	}
	w.note("%s leads", p.name)
	if w.temper.blind {
		p.sets.stall(w.between(longest/2, longest))
	}
	w.disturb(max(w.now, p.paused, p.sets.stalled, p.rest.stalled))
	l := &leader{p: p, reviews: entry.Reviews{}, first: map[string]time.Time{}}
	p.leader = l
	l.wake()
	if !w.rules.goesBackUnmended {
		p.after(10*time.Second, l.prove)
	}
}

func (l *leader) wake() { l.wakeAfter(5 * time.Millisecond) }

func (l *leader) wakeAfter(d time.Duration) {
	switch {
	case l.ended:
	case l.busy:
		l.again = true
	case !l.planned:
		l.planned = true
		l.p.after(d, func() { l.planned = false; l.pass() })
	}
}

func clock(now time.Duration) time.Time { return time.Unix(0, 0).Add(now) }

// prove asks all API servers for the newest serials of all slots, every ten seconds. A slot whose
// serial is not proven is written anew, five times at most.
func (l *leader) prove() {
	if l.ended {
		return
	}
	l.p.after(10*time.Second, l.prove)
	l.proveUntil(l.p.w.now + time.Second)
}

func (l *leader) proveUntil(deadline time.Duration) {
	l.askFor(nil, func(proven map[int]bool) {
		done := true
		for i := range l.proven {
			ok, asked := proven[i]
			switch {
			case ok:
				l.tries[i] = 0
			case asked && l.p.w.now < deadline:
				done = false
			case asked && l.tries[i] < 5:
				l.p.w.counts.mended++
				l.p.w.note("%s writes slot %d anew", l.p.name, i)
				l.proven[i], l.anew[i] = 0, true
				l.tries[i]++
				l.wake()
			}
		}
		if !done {
			l.p.after(100*time.Millisecond, func() { l.proveUntil(deadline) })
		}
	})
}

// askFor asks all API servers for the known serials of slots, and remembers what is proven. A nil
// which means all slots.
func (l *leader) askFor(which map[int]bool, then func(proven map[int]bool)) {
	serials := map[int]uint64{}
	for i, s := range l.p.slots {
		if s != nil && !s.IsEmpty() && (which == nil || which[i]) {
			serials[i] = s.Serial
		}
	}
	if len(serials) == 0 {
		then(nil)
		return
	}
	l.p.ask(serials, func(proven map[int]bool) {
		for i, ok := range proven {
			if ok {
				l.proven[i] = max(l.proven[i], serials[i])
			}
		}
		then(proven)
	})
}

// view is what the leader knows in one pass.
type view struct {
	sets   map[string]*sidecarSet
	slots  [entry.Slots]*entry.Slot
	wanted [entry.Slots][]entry.Entry
	// open has, by slot, whether it has needs that no SidecarSet of the snapshot has. names are
	// those of their SidecarSets.
	open  [entry.Slots]bool
	names []string
	facts map[string]entry.Fact
	was   map[string]bool // the UIDs that the leader had seen stored before it read
	inUse map[string]bool // entries
}

// pass reads the SidecarSets of needs that its snapshot does not have, writes what differs, and
// judges readiness.
func (l *leader) pass() {
	if l.ended || l.busy {
		return
	}
	l.busy, l.again = true, false
	l.passes++
	p, w := l.p, l.p.w
	v := &view{sets: maps.Clone(p.snapshot), slots: p.slots, facts: map[string]entry.Fact{}, was: map[string]bool{}, inUse: map[string]bool{}}
	l.reviews.Observe(&v.slots, clock(w.now))
	var all []entry.Entry
	for _, name := range slices.Sorted(maps.Keys(v.sets)) {
		all = append(all, v.sets[name].entry)
		v.inUse[v.sets[name].entry.Name] = true
	}
	v.wanted = entry.Combine(all)
	l.open(v)
	began := w.now
	p.readSets(v.names, func(found map[string]*sidecarSet, ok bool) {
		for name, s := range found {
			f := entry.Fact{Began: clock(began)}
			if w.rules.dropWithoutRead {
				s = v.sets[name]
			}
			if s != nil {
				f.Stored, f.UID, f.Generation, f.Entry = true, s.need().UID, int64(s.gen), s.entry.Name
				if !w.rules.inUseBySnapshot {
					v.inUse[f.Entry] = true
				}
			}
			v.facts[name] = f
		}
		if !ok && !w.rules.failedIsNone {
			l.again = true
			l.finish(v)
			return
		}
		l.askFor(l.movesTo(v), func(map[int]bool) {
			think := time.Duration(0)
			if w.chance(w.temper.thinks) && len(v.names) > 0 {
				think = w.upTo(10 * time.Second)
				w.disturb(w.now + think)
			}
			if w.rules.readOlderThanKnown {
				maps.Copy(v.was, p.seen)
			}
			changes := l.plan(v)
			p.after(think, func() { l.send(changes, func() { l.judge(v) }) })
		})
	})
}

// open finds the needs that have to be judged.
func (l *leader) open(v *view) {
	names := map[string]bool{}
	for i, s := range v.slots {
		if s == nil {
			continue
		}
		for name, needs := range s.Needs {
			for _, n := range needs {
				key := name + n.Name + n.UID
				if _, ok := l.first[key]; !ok {
					l.first[key] = clock(l.p.w.now)
				}
				known := v.sets[n.Name]
				if known == nil || known.need().UID != n.UID || int64(known.gen) < n.Generation || known.entry.Name != name {
					v.open[i], names[n.Name], v.was[n.UID] = true, true, l.p.seen[n.UID]
				}
			}
		}
	}
	v.names = slices.Sorted(maps.Keys(names))
}

// movesTo are the slots of the entries that facts name.
func (l *leader) movesTo(v *view) map[int]bool {
	slots := map[int]bool{}
	for _, f := range v.facts {
		if i := entry.SlotOf(f.Entry); f.Entry != "" && v.slots[i] != nil && l.proven[i] < v.slots[i].Serial {
			slots[i] = true
		}
	}
	return slots
}

// moved says whether every API server uses the entry that a fact names, with a need of the
// SidecarSet.
func (l *leader) moved(v *view, n entry.Need, f entry.Fact) bool {
	i := entry.SlotOf(f.Entry)
	s := v.slots[i]
	n.Generation = f.Generation
	return s != nil && s.Holds(f.Entry, n) && l.proven[i] >= s.Serial
}

// plan returns the next versions of the slots that differ.
func (l *leader) plan(v *view) (changes []*configuration) {
	rules := &l.p.w.rules
	for i, s := range v.slots {
		if s == nil || !v.open[i] && !l.anew[i] && l.idle[i].slot == s && maps.Equal(l.idle[i].sets, v.sets) {
			continue
		}
		verdict := func(name string, n entry.Need) entry.Verdict {
			f, ok := v.facts[n.Name]
			if !ok {
				return entry.Verdict{} // a generation that is not in the facts
			}
			c := entry.Case{
				Entry: name, Need: n, Fact: f, WasStored: v.was[n.UID], First: l.reviews.First(name, n), InUse: v.inUse[name], Moved: l.moved(v, n, f),
			}
			if rules.timerByNeed {
				c.First = l.first[name+n.Name+n.UID]
			}
			return rules.judge(c)
		}
		plan := s.Reconcile(v.wanted[i], nil, verdict, l.anew[i], l.p.settings())
		l.idle[i] = idle{}
		if next := rules.reconciled(s, plan.Next, v.sets); next != nil {
			changes = append(changes, next)
		} else {
			l.idle[i] = idle{s, v.sets}
		}
	}
	return changes
}

// send writes changes in their order. If a slot was written meanwhile, the leader plans again.
func (l *leader) send(changes []*configuration, then func()) {
	if len(changes) == 0 || l.ended {
		then()
		return
	}
	i, _ := entry.Index(changes[0].Name)
	var now *entry.Slot
	var written bool
	l.p.call(func() { now, written = l.p.w.putSlot(i, changes[0]) }, func(ok bool) {
		switch {
		case !ok:
			l.again = true
		case written:
			l.p.w.note("%s has written slot %d: serial %d, number %d, needs %v", l.p.name, i, now.Serial, now.Number, now.Needs)
			l.anew[i] = false
			l.p.take(i, now)
		default:
			l.again = true
			l.p.take(i, now)
		}
		l.send(changes[1:], then)
	})
}

// finish ends a pass. The next one comes when something changes, or when a timer ends.
func (l *leader) finish(v *view) {
	l.busy = false
	if l.again {
		l.wake()
		return
	}
	w, next := l.p.w, time.Hour
	for _, s := range v.sets {
		if s.ready != s.gen {
			next = 50 * time.Millisecond
		}
	}
	for i, s := range v.slots {
		if s == nil || !v.open[i] {
			continue
		}
		for name, needs := range s.Needs {
			for _, n := range needs {
				f, ok := v.facts[n.Name]
				switch wait := entry.Wait(l.reviews.First(name, n), clock(w.now), v.inUse[name]); {
				case !ok || f.Stored && f.UID == n.UID && f.Generation == n.Generation && f.Entry == name:
				case f.Stored && f.UID == n.UID && f.Generation >= n.Generation:
					next = min(next, 100*time.Millisecond)
				case wait > 0:
					next = min(next, wait)
				default:
					next = min(next, 500*time.Millisecond)
				}
			}
		}
	}
	if next < time.Hour {
		pass := l.passes
		l.p.after(next, func() {
			if l.passes == pass {
				l.wake()
			}
		})
	}
}

// judge says which SidecarSets are Ready: the slot as read says their entry, and each API server
// that is up uses it.
func (l *leader) judge(v *view) {
	var waiting []*sidecarSet
	slots := map[int]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.sets)) {
		s := v.sets[name]
		i := s.entry.Slot()
		if known := l.p.slots[i]; s.ready == s.gen && (known == nil || !known.Holds(s.entry.Name, s.need())) {
			l.tell(s, 0, nil)
		} else if s.ready != s.gen && known != nil {
			waiting = append(waiting, s)
			slots[i] = true
		}
	}
	left := len(slots)
	if left == 0 {
		l.finish(v)
		return
	}
	settings, serials, read := l.p.settings(), map[int]uint64{}, map[int]*entry.Slot{}
	for _, i := range slices.Sorted(maps.Keys(slots)) {
		l.p.readSlot(i, func(s *entry.Slot, ok bool) {
			if ok {
				read[i], serials[i] = s, s.Serial
			}
			if left--; left > 0 {
				return
			}
			l.p.ask(serials, func(proven map[int]bool) {
				for _, s := range waiting {
					i := s.entry.Slot()
					at := slices.IndexFunc(v.wanted[i], func(e entry.Entry) bool { return e.Name == s.entry.Name })
					if proven[i] && read[i].Says(&v.wanted[i][at], settings) {
						l.tell(s, s.gen, read[i])
					}
				}
				l.finish(v)
			})
		})
	}
}

// tell writes the condition Ready.
func (l *leader) tell(s *sidecarSet, ready int, by *entry.Slot) {
	w := l.p.w
	l.p.call(func() {
		current := w.stored.sets[s.name]
		if current == nil || current.uid != s.uid || current.gen != s.gen || current.ready == ready {
			return
		}
		next := *current
		next.ready = ready
		if ready == 0 {
			w.putSet(next)
			return
		}
		if w.stored.wasReset(by) {
			return
		}
		w.note("%s says that %v is Ready", l.p.name, s)
		w.counts.ready++
		now := w.putSet(next)
		w.promise(now, fmt.Sprintf("%v is Ready", s))
	}, func(bool) {})
}
