package protocol

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// leader keeps the shards as the stored SidecarSets need them, and writes the condition Ready.
type leader struct {
	p       *process
	ended   bool
	busy    bool
	planned time.Duration // when the next pass begins; 0 if none does
	again   bool

	reviews    podwebhook.Reviews
	propagated [podwebhook.Shards]uint64 // serials that all API servers were seen to use
	anew       [podwebhook.Shards]bool   // shards to be written although nothing differs
	asked      [podwebhook.Shards]struct {
		serial uint64 // that is not propagated
		since  time.Duration
		tries  int // how often the shard was written again without a proof
	}
}

// elect makes a process the leader. The leader before it may still lead for a while.
func (w *simulation) elect() {
	for _, p := range w.processes {
		if old := p.leader; old != nil {
			w.after(w.lag(20*time.Second), func() { old.ended = true })
		}
	}
	p := pick(w, w.processes)
	w.note("%s leads", p.name)
	if w.chance(2 * w.temper.stalls) {
		p.sets.stall(longest)
	}
	l := &leader{p: p, reviews: podwebhook.Reviews{}}
	p.leader = l
	p.wake()
}

// wakeAfter makes a pass begin after a time at the latest.
func (l *leader) wakeAfter(d time.Duration) {
	at := l.p.w.now + d
	switch {
	case l.busy:
		l.again = true
	case l.planned == 0 || at < l.planned:
		l.planned = at
		l.p.after(d, func() {
			if l.planned == at {
				l.pass()
			}
		})
	}
}

func (l *leader) clock() time.Time { return time.Unix(0, 0).Add(l.p.w.now) }

// prove asks all API servers for the known serials. A shard whose serial is not propagated for ten
// seconds is written again, and again after pauses of up to a minute.
func (l *leader) prove(then func()) {
	w, serials := l.p.w, map[int]uint64{}
	for i, s := range l.p.shards {
		if s != nil && !s.IsEmpty() {
			serials[i] = s.Serial
		}
	}
	l.p.ask(serials, func(propagated map[int]bool) {
		for i, ok := range propagated {
			switch a := &l.asked[i]; {
			case ok:
				a.serial, a.tries, l.propagated[i] = 0, 0, max(l.propagated[i], serials[i])
			case a.serial != serials[i]:
				a.serial, a.since = serials[i], w.now
			case w.now-a.since >= min(10*time.Second<<a.tries, time.Minute):
				if a.since = w.now; l.p.shards[i] == w.stored.shards[i] {
					w.rounds[i]++
				}
				if a.tries = min(a.tries+1, 3); w.wrong != goesBackUnmended {
					w.note("%s writes shard %d anew", l.p.name, i)
					l.propagated[i], l.anew[i] = 0, true
				}
			}
		}
		then()
	})
}

// view is what the leader knows in one pass.
type view struct {
	namespace types.UID
	sets      map[string]*sidecarSet
	shards    [podwebhook.Shards]*podwebhook.Shard
	wanted    [podwebhook.Shards][]podwebhook.Webhook
	doubts    [podwebhook.Shards][]podwebhook.Doubt
	names     []string // of the SidecarSets that decide about the doubts
	facts     map[string]podwebhook.Fact
}

func (l *leader) observe() *view {
	v := &view{namespace: l.p.namespace, sets: maps.Clone(l.p.snapshot), shards: l.p.shards, facts: map[string]podwebhook.Fact{}}
	before := maps.Clone(l.reviews)
	l.reviews.Observe(&v.shards, l.clock())
	if l.p.w.wrong == timerByDependency {
		maps.Copy(l.reviews, before)
	}
	var all []podwebhook.Webhook
	for _, s := range v.sets {
		all = append(all, s.webhook)
	}
	v.wanted = podwebhook.Combine(v.namespace, all)
	for i, s := range v.shards {
		if s == nil {
			continue
		}
		v.doubts[i] = s.Doubts(v.wanted[i], l.known(v, i))
		for at := range v.doubts[i] {
			d := &v.doubts[i][at]
			if !d.Due && l.p.w.wrong == none { // a mistake is looked for at any time
				l.wakeAfter(d.Wait)
				continue
			}
			v.names = append(append(v.names, d.Dependency.Name), d.Others...)
		}
	}
	slices.Sort(v.names)
	v.names = slices.Compact(v.names)
	return v
}

// known is what the leader knows by its snapshot. An older version looks for the SidecarSets of a webhook in
// the shard that it would choose.
func (l *leader) known(v *view, i int) podwebhook.Known {
	return podwebhook.Known{
		InUse: func(name string) bool {
			shards := v.wanted[:]
			if v.namespace == "" {
				shards = shards[i : i+1]
			}
			return slices.ContainsFunc(shards, func(wanted []podwebhook.Webhook) bool {
				return slices.ContainsFunc(wanted, func(e podwebhook.Webhook) bool { return e.Name == name })
			})
		},
		Generation: func(n podwebhook.Dependency) (int64, bool) {
			s := v.sets[n.Name]
			if s == nil || !s.dependency().Is(n) {
				return 0, false
			}
			return int64(s.gen), true
		},
		Seen: func(n podwebhook.Dependency) bool { return l.p.seen[n.UID] }, Reviews: l.reviews, Now: l.clock(),
	}
}

// pass reads the SidecarSets of dependencies that its snapshot does not have, writes what differs, and
// judges readiness.
func (l *leader) pass() {
	if l.planned = 0; l.ended || l.busy {
		return
	}
	l.busy, l.again = true, false
	v := l.observe()
	l.isOurs(v, func(ok bool) {
		if !ok {
			l.again = true
			l.finish(v)
			return
		}
		l.lead(v)
	})
}

// isOurs asks which Namespace there is, if another process has written a shard by another one.
func (l *leader) isOurs(v *view, then func(ok bool)) {
	own := v.namespace
	if own == "" || l.p.w.wrong == asksNoNamespace || !slices.ContainsFunc(v.shards[:], func(s *podwebhook.Shard) bool { return s != nil && s.Namespace != podwebhook.ShortUID(own) }) {
		then(true)
		return
	}
	is := own
	l.p.call(func() { is = l.p.w.namespace() }, func(ok bool) { then(ok && is == own) })
}

func (l *leader) lead(v *view) {
	p, w, began := l.p, l.p.w, l.clock()
	p.readSets(v.names, func(found map[string]*sidecarSet, ok bool) {
		if !ok && w.wrong != failedIsNone {
			l.again = true
			l.finish(v)
			return
		}
		for name, s := range found {
			f := podwebhook.Fact{Began: began}
			if w.wrong == dropWithoutRead {
				s = v.sets[name]
			}
			if s != nil {
				f.Stored, f.UID, f.Generation, f.Webhook = true, s.dependency().UID, int64(s.gen), s.webhook.Name
				f.Shard = s.webhook.Shard(v.namespace)
			}
			v.facts[name] = f
		}
		l.prove(func() {
			changes, think := l.plan(v), time.Duration(0)
			if w.chance(w.temper.thinks) && len(v.names) > 0 {
				think = w.upTo(10 * time.Second)
			}
			p.after(think, func() { l.send(v, changes) })
		})
	})
}

// plan returns the next versions of the shards that differ.
func (l *leader) plan(v *view) (changes []*configuration) {
	moved := func(f podwebhook.Fact, n podwebhook.Dependency) bool {
		s := v.shards[f.Shard]
		n.Generation = f.Generation
		ours := s != nil && (v.namespace == "" || l.p.w.wrong == asksNoNamespace || s.Namespace == podwebhook.ShortUID(v.namespace))
		return ours && s.HasDependency(f.Webhook, n) && l.propagated[s.Index] >= s.Serial
	}
	for i, s := range v.shards {
		if s == nil {
			continue
		}
		decisions := podwebhook.Decisions{}
		for at := range v.doubts[i] {
			d := &v.doubts[i][at]
			if l.p.w.wrong == readOlderThanKnown {
				d.WasStored = d.WasStored || l.p.seen[d.Dependency.UID]
			}
			if c, read := d.Case(v.facts, moved); read {
				if v.namespace == "" && c.Fact.Webhook == c.Webhook {
					c.Shard = c.Fact.Shard // an older version knows of one shard only
				}
				c.InUse = c.InUse && (l.p.w.wrong != inUseBySnapshot || d.InUse)
				decisions[d.Is()] = l.p.w.wrong.decide(c)
			}
		}
		wanted := v.wanted[i]
		if l.p.w.wrong == dropSatisfied {
			wanted, decisions = withoutDependencies(wanted), s.DropAll()
		}
		if next := s.Reconcile(wanted, decisions, l.anew[i], settingsOf(v.namespace)).Next; next != nil {
			changes = append(changes, next)
		}
	}
	return changes
}

func withoutDependencies(wanted []podwebhook.Webhook) []podwebhook.Webhook {
	wanted = slices.Clone(wanted)
	for i := range wanted {
		wanted[i].Dependencies = nil
	}
	return wanted
}

// send writes changes in their order, and ends the pass. If a shard was written meanwhile, the
// leader plans again.
func (l *leader) send(v *view, changes []*configuration) {
	if len(changes) == 0 || l.ended {
		l.judge(v)
		l.finish(v)
		return
	}
	var now *podwebhook.Shard
	var written bool
	l.p.call(func() { now, written = l.p.w.putShard(changes[0]) }, func(ok bool) {
		i, _ := podwebhook.ShardNumber(changes[0].Name)
		l.again = l.again || !ok || !written
		l.anew[i] = l.anew[i] && (!ok || !written)
		if ok {
			l.p.take(i, now)
		}
		l.send(v, changes[1:])
	})
}

// finish ends a pass. The next one comes when something changes, or at the latest soon after if
// something is not done.
func (l *leader) finish(v *view) {
	l.busy = false
	for _, s := range v.sets {
		l.again = l.again || s.ready != s.gen
	}
	switch {
	case l.again:
		l.wakeAfter(50 * time.Millisecond)
	case len(v.names) > 0:
		l.wakeAfter(200 * time.Millisecond)
	default:
		l.wakeAfter(5 * time.Second)
	}
}

// judge says which SidecarSets are Ready: the shard as read says their webhook, and each API server
// uses it.
func (l *leader) judge(v *view) {
	for _, name := range slices.Sorted(maps.Keys(v.sets)) {
		s := v.sets[name]
		i := podwebhook.ShardOf(v.namespace, s.webhook.Name)
		switch known := l.p.shards[i]; {
		case s.ready == s.gen && (known == nil || !known.HasDependency(s.webhook.Name, s.dependency())):
			l.tell(s, 0, known)
		case s.ready != s.gen && known != nil:
			l.p.readShard(i, func(read *podwebhook.Shard, ok bool) {
				at := slices.IndexFunc(v.wanted[i], func(e podwebhook.Webhook) bool { return e.Name == s.webhook.Name })
				if !ok || !read.Has(&v.wanted[i][at], settingsOf(v.namespace)) {
					return
				}
				l.p.ask(map[int]uint64{i: read.Serial}, func(propagated map[int]bool) {
					if propagated[i] {
						l.tell(s, s.gen, read)
					}
				})
			})
		}
	}
}

// tell writes the condition Ready.
func (l *leader) tell(s *sidecarSet, ready int, by *podwebhook.Shard) {
	w := l.p.w
	l.p.call(func() {
		now := w.stored.sets[s.name]
		if l.ended || now == nil || now.uid != s.uid || now.gen != s.gen || now.ready == ready || ready > 0 && w.wasReset(by) {
			return
		}
		next := *now
		next.ready = ready
		if now = w.putSet(next); ready > 0 {
			w.promise(now, "it is Ready")
		}
	}, func(bool) {})
}
