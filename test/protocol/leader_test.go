package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/entries"
)

// leader keeps the entries as the stored SidecarSets want them, and says Ready. It
// follows controllers/podwebhook_leader.go and podwebhook_write.go; what the two
// protocols know, and how, is in known, settled and isReady.
type leader struct {
	p       *process
	ended   bool
	busy    bool
	planned bool // a pass is planned
	again   bool
	passes  int
	idle    idle

	noted   map[string]*noted    // by SidecarSet
	windows map[string]*window   // by entry
	placed  map[string]placement // by entry
	seen    map[string]seenLease // by replica
	began   map[string]*provisional
	room    int
	grown   reading
	proven  map[string][]int64 // serials by API server
}

// noted is what the leader knows of one content of a SidecarSet.
type noted struct {
	uid, gen int
	version  uint64 // with which all replicas that are waited for have to know it
	since    reading
	entry    entries.Entry
	was      bool  // Ready was said before this leader began
	written  int64 // the serial with which this leader had the entry on the fresh path for it; 0 before
}

type window struct {
	touched  int64
	since    reading
	orphaned *reading
}

type placement struct {
	index  int
	serial int64
}

type seenLease struct {
	lease *lease
	at    reading
}

type provisional struct {
	since   reading
	touched int64 // by the review that wrote it last
	expired bool
}

// elect has a process lead. The leader before it may go on for a while.
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
		p: p, noted: map[string]*noted{}, windows: map[string]*window{}, placed: map[string]placement{}, seen: map[string]seenLease{},
		began: map[string]*provisional{}, room: -1, proven: map[string][]int64{},
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

func (l *leader) since(r reading) time.Duration {
	if l.p.w.rules.leaderWall {
		return l.p.clock().wall - r.wall
	}
	return l.p.clock().mono - r.mono
}

// soon is when to look again. The operator looks every half a second; two seconds save
// three quarters of the work, and leave the windows as they are but for as much.
const soon = 2 * time.Second

// view is what one pass knows.
type view struct {
	sets    map[string]*sidecarSet
	wanted  []entries.Entry
	layout  entries.Layout
	expired map[string]bool
	wrote   map[int]uint64
	behind  bool // it is not known that the snapshot holds all that is stored: nothing settles
}

func (l *leader) pass() {
	if l.ended || l.busy {
		return
	}
	l.busy, l.again = true, false
	l.live() // a Lease counts from when it is seen
	l.passes++
	v := &view{sets: maps.Clone(l.p.snapshot), layout: l.p.layout, wrote: map[int]uint64{}}
	for _, name := range slices.Sorted(maps.Keys(v.sets)) {
		s := v.sets[name]
		l.note(s)
		v.wanted = append(v.wanted, s.entry)
	}
	maps.DeleteFunc(l.noted, func(name string, _ *noted) bool { return v.sets[name] == nil })
	v.wanted = entries.Combine(v.wanted)
	think := time.Duration(0)
	if w := l.p.w; w.faults && (w.chance(3) || w.temper.ambush && w.chance(10)) {
		think = w.upTo(10 * time.Second)
	}
	l.lookUp(v, func() {
		l.expire(v, func() {
			l.claim(v, func() {
				l.p.after(think, func() { l.carryOut(v) })
			})
		})
	})
}

// lookUp is what the operator lacks today: a leader knows orphans, and waits for the
// acknowledgements, by the SidecarSets that it knows, which may not be all.
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

// finish ends a pass. The next comes when something changes, or by time.
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

// note remembers since when a SidecarSet says what it says.
func (l *leader) note(s *sidecarSet) {
	if known := l.noted[s.name]; known != nil && known.uid == s.uid && known.gen == s.gen {
		return
	}
	n := &noted{uid: s.uid, gen: s.gen, version: s.version, since: l.p.clock(), entry: s.entry}
	if l.noted[s.name] == nil && s.ready == s.gen {
		n.version, n.was = 0, true
	}
	l.noted[s.name] = n
}

// live are the replicas that are waited for.
func (l *leader) live() map[string]*lease {
	live := map[string]*lease{}
	for name, current := range l.p.leases {
		if known, ok := l.seen[name]; !ok || known.lease != current {
			l.seen[name] = seenLease{current, l.p.clock()}
		}
		if l.since(l.seen[name].at) < l.p.w.rules.gone || l.p.w.rules.anyAck {
			live[name] = current
		}
	}
	maps.DeleteFunc(l.seen, func(name string, _ seenLease) bool { return l.p.leases[name] == nil })
	return live
}

func (l *leader) acknowledged(version uint64) bool {
	known, live := 0, l.live()
	for _, lease := range live {
		if lease.observed >= version {
			known++
		}
	}
	if l.p.w.rules.anyAck {
		return known > 0
	}
	return known > 0 && known == len(live)
}

// known says whether the snapshot of each replica that answers without a check holds
// what a SidecarSet says.
func (l *leader) known(member string) bool {
	n := l.noted[member]
	if n == nil {
		return true
	}
	if l.p.w.rules.acks {
		return l.acknowledged(n.version)
	}
	if n.was && (l.p.w.rules.readyIsKnown || l.isPlain(n.entry)) {
		return true
	}
	return l.since(n.since) >= l.p.w.rules.seenFor
}

// isPlain says whether an entry is on the path that answers from the snapshot.
func (l *leader) isPlain(e entries.Entry) bool {
	i, at, ok := l.p.layout.Locate(e.Name)
	return ok && *l.p.layout[i].Webhooks[at].ClientConfig.Service.Path == "/pods"
}

func (l *leader) settled(entry string, touched int64, orphan bool) bool {
	rules := &l.p.w.rules
	if rules.noWindow || orphan && rules.orphanAtOnce {
		return true
	}
	now := l.p.clock()
	known := l.windows[entry]
	if known == nil || known.touched != touched {
		known = &window{touched: touched, since: now}
		l.windows[entry] = known
	}
	if !orphan {
		known.orphaned = nil
	} else if known.orphaned == nil {
		known.orphaned = &now
	}
	return l.since(known.since) >= rules.window || orphan && l.since(*known.orphaned) >= rules.window
}

// expire finds the provisional entries that no SidecarSet was stored for in time. It
// follows controllers/podwebhook_provisional.go.
func (l *leader) expire(v *view, then func()) {
	stands, touched := map[string]bool{}, entries.Touched(v.layout[entries.Provisional])
	for _, name := range v.layout.Provisionals() {
		stands[name] = true
		if known := l.began[name]; known == nil || known.touched != touched[name] && !l.p.w.rules.noRenewal {
			l.began[name] = &provisional{since: l.p.clock(), touched: touched[name]}
		}
	}
	maps.DeleteFunc(l.began, func(name string, _ *provisional) bool { return !stands[name] })
	switch {
	case l.room < 0:
		l.room, _ = entries.RoomOf(v.layout[entries.Provisional])
		l.grown = l.p.clock()
	case l.room >= entries.MaxProvisional:
		l.grown = l.p.clock()
	case l.since(l.grown) >= 20*time.Second:
		l.room, l.grown = l.room+1, l.p.clock()
	}
	wanted := entries.ProvisionalNames(v.wanted)
	v.expired = map[string]bool{}
	var due []*provisional
	for name, p := range l.began {
		if !wanted[name] && (p.expired || l.since(p.since) >= provisionalFor) {
			v.expired[name] = true
			if !p.expired {
				due = append(due, p)
			}
		}
	}
	if len(due) == 0 {
		then()
		return
	}
	var list map[string]*sidecarSet
	l.p.call(func() { list = maps.Clone(l.p.w.stored.sets) }, func(ok bool) {
		for name, s := range list {
			if known := v.sets[name]; known == nil || known.uid != s.uid || known.gen < s.gen {
				ok = false
			}
		}
		if !ok && !l.p.w.rules.expireBlindly {
			for name := range v.expired {
				if !l.began[name].expired {
					delete(v.expired, name)
				}
			}
			then()
			return
		}
		for _, p := range due {
			p.expired, l.room, l.grown = true, max(l.room-1, 0), l.p.clock()
		}
		then()
	})
}

// claim writes, in the name of each SidecarSet that is not known to have been Ready, that
// its entry is on the fresh path, though it may be there already. So a leader that was
// replaced, and goes on with an older plan, fails to narrow it.
func (l *leader) claim(v *view, then func()) {
	var claimed []entries.Entry
	var of []*noted
	for _, name := range slices.Sorted(maps.Keys(v.sets)) {
		n := l.noted[name]
		if _, _, stands := v.layout.Locate(v.sets[name].entry.Name); stands && !n.was && n.written == 0 {
			claimed, of = append(claimed, v.sets[name].entry), append(of, n)
		}
	}
	if len(claimed) == 0 || l.p.w.rules.acks || l.p.w.rules.noClaim {
		then()
		return
	}
	changes, homeless := entries.Widen(v.layout, entries.Combine(claimed), l.p.settings())
	l.p.send(changes, v.wrote, func(ok, stale bool) {
		if ok && !stale && len(homeless) == 0 {
			for k, n := range of {
				if i, _, stands := l.p.layout.Locate(claimed[k].Name); stands && v.wrote[i] == versionOf(l.p.layout[i]) {
					n.written = entries.Serial(l.p.layout[i])
				}
			}
		}
		v.layout = l.p.layout
		then()
	})
}

// idle is a plan that had nothing to do, and all that decided about it. While that is
// the same, planning again would be for nothing; it is most of what a run costs.
type idle struct {
	planned   bool
	layout    entries.Layout
	sets      map[string]*sidecarSet
	questions map[string]func() bool // and what the answers were
	answers   map[string]bool
}

func (l *leader) isIdle(v *view) bool {
	i := &l.idle
	if !i.planned || i.layout != v.layout || !maps.Equal(i.sets, v.sets) || len(v.expired) > 0 {
		return false
	}
	if room, _ := entries.RoomOf(v.layout[entries.Provisional]); room != max(l.room, 0) {
		return false
	}
	for key, ask := range i.questions {
		if ask() != i.answers[key] {
			return false
		}
	}
	return true
}

// ask answers a question of the planner, and remembers it.
func (l *leader) ask(key string, question func() bool) bool {
	l.idle.questions[key], l.idle.answers[key] = question, question()
	return l.idle.answers[key]
}

func (l *leader) carryOut(v *view) {
	rules := &l.p.w.rules
	if l.isIdle(v) {
		l.judge(v)
		return
	}
	l.idle = idle{layout: v.layout, sets: v.sets, questions: map[string]func() bool{}, answers: map[string]bool{}}
	l.place(v)
	settings := l.p.settings()
	plan := entries.Next(entries.State{
		Layout: v.layout, Wanted: v.wanted, Expired: v.expired, Room: max(l.room, 0),
		Known: func(member string) bool {
			return l.ask(member, func() bool { return l.known(member) })
		},
		Settled: func(entry string, touched int64, orphan bool) bool {
			settled := l.ask(fmt.Sprint(entry, orphan), func() bool { return l.settled(entry, touched, orphan) })
			return settled && !v.behind
		},
		CanServe: l.ask("serve", func() bool { return !rules.acks || len(l.live()) > 0 }),
	}, settings)
	l.idle.planned = len(plan.Changes) == 0 && !v.behind
	first, last := plan.Changes, []entries.Change(nil)
	if n := len(first); n > 0 && first[n-1].Index == entries.Provisional {
		first, last = first[:n-1], first[n-1:]
		if rules.provisionalFirst {
			first, last = last, first
		}
	}
	l.p.send(first, v.wrote, func(ok, stale bool) {
		if !ok || stale {
			l.again = true
			l.judge(v)
			return
		}
		l.p.send(last, v.wrote, func(ok, stale bool) {
			l.again = l.again || !ok || stale
			l.judge(v)
		})
	})
}

// place notes since which serial each entry has been where it is.
func (l *leader) place(v *view) {
	names, settings := map[string]bool{}, l.p.settings()
	for _, e := range v.wanted {
		names[e.Name] = true
		before, was := l.placed[e.Name]
		switch i, holds := v.layout.Holds(e, settings); {
		case !holds:
			delete(l.placed, e.Name)
		case !was || before.index != i:
			l.placed[e.Name] = placement{i, entries.Serial(v.layout[i])}
		}
	}
	maps.DeleteFunc(l.placed, func(name string, _ placement) bool { return !names[name] })
	maps.DeleteFunc(l.windows, func(name string, _ *window) bool {
		_, _, stands := v.layout.Locate(name)
		return !stands
	})
}
