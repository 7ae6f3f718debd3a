package protocol

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sidecarset/operator/internal/entryplan"
)

// leader keeps the entries as the stored SidecarSets need them, and writes the condition Ready.
// It follows webhooks/entries/leader.go and write.go.
type leader struct {
	p       *process
	ended   bool
	busy    bool
	planned bool // a pass is planned
	again   bool
	passes  int
	idle    idle

	noted    map[string]*noted // by SidecarSet
	windows  entryplan.Windows
	placed   map[string]placement // by entry
	room     entryplan.ProvisionalRoom
	began    map[string]time.Time // by provisional entry, for a leader that ignores renewals
	proven   map[string][]int64   // serials by API server
	unproven int                  // failed tries to prove that API servers use the written entries
	anew     bool                 // it has recorded that any SidecarSet may be between admission and storage, or need not
}

// noted is what the leader knows about one content of a SidecarSet.
type noted struct {
	uid, gen int
	entry    entryplan.Entry
	was      bool      // the SidecarSet was Ready before this leader began
	recorded bool      // this leader has recorded the name for it
	written  placement // where this leader has written the entry for it; zero before
}

type placement struct {
	index  int
	serial int64
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
	w.elections++
	p := alive[w.rng.IntN(len(alive))]
	if p.leader != nil {
		p.leader.ended = true
	}
	w.note("%s leads", p.name)
	l := &leader{
		p: p, noted: map[string]*noted{}, windows: entryplan.Windows{}, placed: map[string]placement{},
		began: map[string]time.Time{}, proven: map[string][]int64{}, anew: !w.temper.anew,
	}
	p.leader = l
	l.wake()
}

func (l *leader) wake() {
	switch {
	case l.ended:
	case l.busy:
		l.again = true
	case !l.planned:
		l.planned = true
		l.p.after(5*time.Millisecond, func() { l.planned = false; l.pass() })
	}
}

// clock returns the time by which the leader measures.
func (l *leader) clock() time.Time {
	now := l.p.clock()
	if l.p.w.rules.leaderWall {
		return time.Unix(0, 0).Add(now.wall)
	}
	return time.Unix(0, 0).Add(now.mono)
}

// soon is when to look again. The operator looks every half a second. Two seconds save three
// quarters of the work, and change the windows by two seconds at most.
const soon = 2 * time.Second

// view is what the leader knows in one pass.
type view struct {
	sets   map[string]*sidecarSet
	wanted []entryplan.Entry
	layout entryplan.Layout
	now    time.Time
	wrote  map[int]uint64
	behind bool // the snapshot may lack a stored SidecarSet: no entry settles
}

func (l *leader) pass() {
	if l.ended || l.busy {
		return
	}
	l.busy, l.again = true, false
	l.passes++
	v := &view{sets: maps.Clone(l.p.snapshot), layout: l.p.layout, now: l.clock(), wrote: map[int]uint64{}}
	for _, name := range slices.Sorted(maps.Keys(v.sets)) {
		s := v.sets[name]
		l.note(s)
		v.wanted = append(v.wanted, s.entry)
	}
	maps.DeleteFunc(l.noted, func(name string, _ *noted) bool { return v.sets[name] == nil })
	v.wanted = entryplan.Combine(v.wanted)
	l.windows.Observe(v.layout, v.wanted, v.now)
	think := time.Duration(0)
	if w := l.p.w; w.faults && (w.chance(3) || w.temper.ambush && w.chance(10)) {
		think = w.upTo(10 * time.Second)
	}
	l.record(v, func() {
		l.lookUp(v, func() {
			l.expire(v, func() {
				l.p.after(think, func() { l.carryOut(v) })
			})
		})
	})
}

// record records the names of SidecarSets that this leader is about to claim, for replicas to
// look up.
func (l *leader) record(v *view, then func()) {
	unrecorded := map[string]string{}
	for name, s := range v.sets {
		if n := l.noted[name]; !n.was && !n.recorded && n.written.serial == 0 {
			unrecorded[name] = s.content()
		}
	}
	names := l.windows.Unrecorded(v.layout, unrecorded, v.now, l.p.w.rules.admission)
	for name := range unrecorded {
		if _, ok := names[name]; !ok {
			l.noted[name].recorded = true
		}
	}
	if !l.anew {
		names[entryplan.RecentAny] = ""
	}
	if len(names) == 0 || l.p.w.rules.leaderNamesNothing {
		for _, n := range l.noted {
			n.recorded = true
		}
		then()
		return
	}
	change, _ := entryplan.Record(v.layout, names, l.p.settings())
	l.p.send([]entryplan.Change{change}, v.wrote, func(ok, stale bool) {
		if ok && !stale {
			l.anew = true
			for name := range names {
				if n := l.noted[name]; n != nil {
					n.recorded = true
				}
			}
		}
		l.again = l.again || !ok || stale
		v.layout = l.p.layout
		l.windows.Observe(v.layout, v.wanted, l.clock())
		then()
	})
}

// lookUp finds out whether the leader knows all stored SidecarSets. The operator asks only if a
// decision depends on it.
func (l *leader) lookUp(v *view, then func()) {
	if rules := &l.p.w.rules; rules.noLookUp {
		then()
		return
	}
	v.behind = true
	l.p.call(func() {
		v.behind = false
		for name, s := range l.p.w.stored.sets {
			known := v.sets[name]
			v.behind = v.behind || known == nil || known.uid != s.uid || known.gen != s.gen
		}
	}, func(ok bool) {
		v.behind = v.behind || !ok
		then()
	})
}

// finish ends a pass. The next one comes when something changes, or after soon.
func (l *leader) finish(soon time.Duration) {
	l.busy = false
	if l.again {
		l.wake()
		return
	}
	pass := l.passes
	l.p.after(soon, func() {
		if l.passes == pass {
			l.wake()
		}
	})
}

// note remembers which content a SidecarSet has, and whether it was Ready with this content when
// the leader first saw it.
func (l *leader) note(s *sidecarSet) {
	if known := l.noted[s.name]; known != nil && known.uid == s.uid && known.gen == s.gen {
		return
	}
	l.noted[s.name] = &noted{uid: s.uid, gen: s.gen, entry: s.entry, was: l.noted[s.name] == nil && s.ready == s.gen}
}

// expire finds the provisional entries for which no SidecarSet was stored in time.
func (l *leader) expire(v *view, then func()) {
	l.room.Observe(v.layout, v.now)
	due, _ := l.room.Due(v.wanted, v.now)
	if l.p.w.rules.noRenewal {
		due = l.dueUnrenewed(v)
	}
	if len(due) > 0 && (!v.behind || l.p.w.rules.expireBlindly) {
		l.room.Expire(due, v.now)
	}
	then()
}

// dueUnrenewed returns the provisional entries that have been present for a second, even if
// reviews have renewed them.
func (l *leader) dueUnrenewed(v *view) (due []string) {
	present, stored := map[string]bool{}, entryplan.ProvisionalNames(v.wanted)
	for _, name := range v.layout.Provisionals() {
		present[name] = true
		if _, ok := l.began[name]; !ok {
			l.began[name] = v.now
		}
		if !stored[name] && v.now.Sub(l.began[name]) >= provisionalFor {
			due = append(due, name)
		}
	}
	maps.DeleteFunc(l.began, func(name string, _ time.Time) bool { return !present[name] })
	return due
}

// state is the input of the planner.
func (l *leader) state(v *view) entryplan.State {
	rules := &l.p.w.rules
	state := entryplan.State{
		Layout: v.layout, Wanted: v.wanted, Expired: l.room.Expired(), Room: l.room.Room(), CanServe: true,
		Claimed: map[string]bool{}, Windows: maps.Clone(l.windows), Now: v.now, Window: rules.window, Complete: !v.behind,
	}
	settled, wanted := v.now.Add(-24*time.Hour), map[string]bool{}
	for name := range v.sets {
		n := l.noted[name]
		wanted[n.entry.Name] = true
		if !n.was && n.recorded && n.written.serial == 0 && !rules.noClaim {
			state.Claimed[n.entry.Name] = true
		}
		if n.was && rules.readyIsKnown {
			state.Windows[n.entry.Name] = entryplan.Window{Since: settled}
		}
	}
	for key, window := range state.Windows {
		if strings.HasPrefix(key, "recent ") && rules.namesForgotten && v.now.Sub(window.Since) > rules.trust {
			window.Since = settled
			state.Windows[key] = window
		}
	}
	for entry, window := range state.Windows {
		if !wanted[entry] && (rules.orphanAtOnce || rules.noClosing && v.now.Sub(window.Orphaned) >= rules.window) {
			state.Windows[entry] = entryplan.Window{Since: settled}
		}
	}
	return state
}

// idle is the state for which a plan had no changes. While the state is the same, the leader
// need not plan again. Planning is most of what a run costs.
type idle struct {
	planned bool
	layout  entryplan.Layout
	sets    map[string]*sidecarSet
	room    int
	until   time.Time
}

func (l *leader) isIdle(v *view) bool {
	i := &l.idle
	return i.planned && i.layout == v.layout && i.room == l.room.Room() && v.now.Before(i.until) && maps.Equal(i.sets, v.sets) && len(l.room.Expired()) == 0
}

func (l *leader) carryOut(v *view) {
	rules := &l.p.w.rules
	if l.isIdle(v) {
		l.judge(v)
		return
	}
	l.place(v)
	plan := entryplan.Next(l.state(v), l.p.settings())
	l.idle = idle{len(plan.Changes) == 0 && !plan.Incomplete, v.layout, v.sets, l.room.Room(), v.now.Add(time.Hour)}
	if plan.Again > 0 {
		l.idle.until = v.now.Add(plan.Again)
	}
	finish := func() {
		for _, change := range plan.Changes {
			if v.wrote[change.Index] > 0 {
				l.noteClaims(change)
			}
		}
		l.judge(v)
	}
	first, last := plan.Changes, []entryplan.Change(nil)
	if n := len(first); n > 0 && first[n-1].Index == entryplan.Provisional {
		first, last = first[:n-1], first[n-1:]
		if rules.provisionalFirst {
			first, last = last, first
		}
	}
	first, deferred := deferSome(first)
	l.again = l.again || deferred
	l.p.send(first, v.wrote, func(ok, stale bool) {
		if !ok || stale {
			l.again = true
			finish()
			return
		}
		awaited := slices.DeleteFunc(slices.Clone(first), func(c entryplan.Change) bool { return c.Deferrable })
		l.prove(awaited, len(last) > 0 && !rules.provisionalFirst && !rules.orderIsEnough, func(ok bool) {
			if !ok {
				l.again = true
				finish()
				return
			}
			l.removeProvisional(v, last, 5, func(ok, stale bool) {
				l.again = l.again || !ok || stale
				finish()
			})
		})
	})
}

// deferSome leaves out deferrable changes beyond the second, as leader.carryOut of package
// entries does, and reports whether there were any.
func deferSome(changes []entryplan.Change) (now []entryplan.Change, deferred bool) {
	deferrable := 0
	for _, change := range changes {
		if change.Deferrable {
			deferrable++
		}
		if !change.Deferrable || deferrable <= 2 {
			now = append(now, change)
		}
	}
	return now, len(now) < len(changes)
}

// removeProvisional follows leader.writeOne of package entries.
func (l *leader) removeProvisional(v *view, changes []entryplan.Change, tries int, then func(ok, stale bool)) {
	l.p.send(changes, v.wrote, func(ok, stale bool) {
		if !ok || !stale || tries == 1 || l.p.w.rules.provisionalFirst {
			then(ok, stale)
			return
		}
		before := v.layout
		if l.p.w.rules.anewBlindly {
			before = l.p.layout
		}
		change, left := entryplan.Anew(changes[0], before, l.p.layout, l.p.settings())
		if !left {
			then(ok, stale)
			return
		}
		l.removeProvisional(v, []entryplan.Change{change}, tries-1, then)
	})
}

// prove waits until API servers use the changes, if asked is true. It follows leader.inForce of
// package entries.
func (l *leader) prove(changes []entryplan.Change, asked bool, then func(ok bool)) {
	const proveTimeout, tries = 500 * time.Millisecond, 5
	if !asked || len(changes) == 0 || l.unproven >= tries {
		if asked {
			l.unproven = 0
		}
		then(true)
		return
	}
	l.p.await(changes[0].Index, entryplan.Serial(changes[0].Object), l.p.w.now+proveTimeout, func(ok bool) {
		if !ok {
			l.unproven++
			then(false)
			return
		}
		l.prove(changes[1:], asked, then)
	})
}

// noteClaims ends the claims whose entries are in a written change.
func (l *leader) noteClaims(change entryplan.Change) {
	layout := entryplan.Layout{}
	layout[change.Index] = change.Object
	for _, n := range l.noted {
		if _, _, ok := layout.Locate(n.entry.Name); ok && n.recorded && n.written.serial == 0 {
			n.written = placement{change.Index, entryplan.Serial(change.Object)}
		}
	}
}

// place notes since which serial each entry has been in its present object.
func (l *leader) place(v *view) {
	names, settings := map[string]bool{}, l.p.settings()
	for _, e := range v.wanted {
		names[e.Name] = true
		before, was := l.placed[e.Name]
		switch i, holds := v.layout.Holds(e, settings); {
		case !holds:
			delete(l.placed, e.Name)
		case !was || before.index != i:
			l.placed[e.Name] = placement{i, entryplan.Serial(v.layout[i])}
		}
	}
	maps.DeleteFunc(l.placed, func(name string, _ placement) bool { return !names[name] })
}
