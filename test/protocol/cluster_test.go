package protocol

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sidecarset/operator/internal/entry"
)

// apiServer calls the operator by its copies of the slots.
type apiServer struct {
	w       *world
	name    string
	down    bool
	slots   [entry.Slots]*entry.Slot // nil if it is deleted
	past    [entry.Slots]*entry.Slot // the copy before
	back    map[int]time.Duration    // since when it uses an older copy than before, by slot
	watches [entry.Slots]*follower
}

// order is the order in which API servers call entries: by the names of the objects.
var order = func() (order []int) {
	for i := range entry.Slots {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(entry.ConfigurationName(a), entry.ConfigurationName(b)) })
	return order
}()

func (w *world) addServer(i int) {
	s := &apiServer{w: w, name: fmt.Sprint("api-server-", i), slots: w.stored.slots, back: map[int]time.Duration{}}
	for i := range s.watches {
		s.watches[i] = &follower{
			w: w, name: fmt.Sprintf("%s slot %d", s.name, i), learned: len(w.stored.log),
			wants: func(r record) bool { return r.set == "" && r.index == i }, learn: s.learn,
		}
	}
	w.followers = append(w.followers, s.watches[:]...)
	w.servers = append(w.servers, s)
}

// learn takes in a slot. See docs/design/0005: sometimes an API server goes on using the copy
// before. Then it does so until the slot is written again.
func (s *apiServer) learn(r record) {
	if s.w.faults && s.w.chance(3) {
		s.w.note("%s compiles an older copy of slot %d", s.name, r.index)
		return
	}
	s.past[r.index], s.slots[r.index] = s.slots[r.index], r.slot
	delete(s.back, r.index)
}

// goBack makes the API server use an older copy of one slot.
func (s *apiServer) goBack(i int) {
	if s.down || s.past[i] == nil || s.slots[i] == nil || s.past[i].Object.UID != s.slots[i].Object.UID {
		return
	}
	s.w.note("%s goes back to an older copy of slot %d: %d", s.name, i, s.past[i].Serial)
	s.slots[i], s.past[i] = s.past[i], nil
	s.back[i] = s.w.now
}

// mendedFor is how long it may take until an API server that went back is noticed, and the slot
// is written again.
const mendedFor = 60 * time.Second

// isBack says whether an API server uses an older copy than was proven, and nobody could have
// noticed that yet.
func (s *apiServer) isBack(i int) bool {
	since, back := s.back[i]
	return back && s.w.now-max(since, s.w.disturbed) < mendedFor
}

// disturb notes that something keeps the leader from its work until a time.
func (w *world) disturb(until time.Duration) { w.disturbed = max(w.disturbed, until) }

// uses says what a probe of the barrier shows: the API server uses that serial, or one of the few
// that followed.
func (s *apiServer) uses(i int, serial uint64) bool {
	c := s.slots[i]
	return c != nil && !c.IsEmpty() && (c.Serial == serial || slices.Contains(c.Earlier, serial))
}

// restart stops an API server. When it is up again, it knows what is stored then.
func (s *apiServer) restart(after time.Duration) {
	s.down = true
	s.w.note("%s is down", s.name)
	s.w.after(after, func() {
		s.down, s.slots, s.past, s.back = false, s.w.stored.slots, [entry.Slots]*entry.Slot{}, map[int]time.Duration{}
		for _, f := range s.watches {
			f.learned, f.stalled = len(s.w.stored.log), 0
		}
		s.w.note("%s is up", s.name)
	})
}

// server returns an API server that is up; nil if none is.
func (w *world) server() *apiServer {
	up := slices.DeleteFunc(slices.Clone(w.servers), func(s *apiServer) bool { return s.down })
	if len(up) == 0 {
		return nil
	}
	return pick(w, up)
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
	return pick(w, some)
}

// write is what a client asks for.
type write struct {
	name   string
	update bool
	labels bool   // it changes labels only, so the generation stays
	value  string // of the label that the SidecarSet selects; "" if it stays
	ignore bool
}

func (w *world) anyWrite(update bool) write {
	r := write{name: pick(w, w.temper.names), update: update, ignore: w.chance(20)}
	if !update || w.chance(25) {
		r.value = pick(w, w.temper.values)
	}
	r.labels = update && r.value == "" && w.chance(15)
	return r
}

// admit is the request of a client who creates a SidecarSet or updates it.
func (w *world) admit(r write) {
	old := w.stored.sets[r.name]
	if r.update && (old == nil || old.deleting) {
		return
	}
	next := sidecarSet{name: r.name, gen: 1, selected: 1, ignore: r.ignore}
	if r.update {
		next = *old
		if !r.labels {
			next.gen, next.ignore = next.gen+1, r.ignore
		}
	} else {
		w.uids++ // also if the name exists: the API server sees that after the review
		next.uid = w.uids
	}
	if r.value != "" && r.value != next.value {
		next.selected = next.gen
		next.key, _, _ = strings.Cut(r.value, "-")
		next.value = r.value
	}
	next.plan()
	w.note("a client writes %v, which selects %s", &next, next.value)
	if r.update && !r.labels && w.faults && w.chance(15) {
		// The API server begins with an older object from its cache.
		stale := next
		stale.gen = max(1, next.gen-1)
		stale.plan()
		w.review(&stale, func(*review) { w.reviewAndStore(next, old, r) })
		return
	}
	w.reviewAndStore(next, old, r)
}

func (w *world) reviewAndStore(next sidecarSet, old *sidecarSet, r write) {
	moved := w.rules.wrongSlot && r.update && next.selected == next.gen
	reviewed := &next
	if moved {
		reviewed = &sidecarSet{}
		*reviewed = next
		reviewed.entry = old.entry
		reviewed.entry.Needs = next.entry.Needs
	}
	if w.temper.ambush && w.chance(30) {
		w.after(w.upTo(50*time.Millisecond), func() { w.forge(next.name) })
	}
	w.review(reviewed, func(done *review) {
		if !done.admitted || w.faults && w.chance(w.temper.refused) {
			w.note("%v is refused", &next)
			w.retry(done, r)
			return
		}
		w.after(w.storageDelay(done), func() { w.store(next, old, r, done) })
	})
}

// retry sends a refused request again, maybe when the leader is about to drop its need.
func (w *world) retry(done *review, r write) {
	if !w.chance(50) {
		return
	}
	at := w.now + w.upTo(200*time.Millisecond)
	if done.at > 0 && w.chance(70) {
		at = done.at + done.limit() + w.upTo(time.Second) - 900*time.Millisecond
	}
	w.after(max(at-w.now, 0), func() { w.admit(r) })
}

// storageDelay is the time between a review and the write of the API server.
func (w *world) storageDelay(r *review) time.Duration {
	switch roll := w.rng.IntN(100); {
	case w.faults && w.chance(w.temper.late):
		limit := r.at + r.limit()
		if w.chance(50) {
			return max(limit-w.upTo(r.limit()/10)-w.now, time.Millisecond)
		}
		return max(w.upTo(r.limit())-w.now+r.at, time.Millisecond)
	case !w.faults || roll < 85:
		return w.between(time.Millisecond, 20*time.Millisecond)
	default:
		return w.upTo(time.Second)
	}
}

// review is one review of a SidecarSet: what a replica answered, and what it has written.
type review struct {
	admitted, widened bool
	at                time.Duration // of the write; 0 if there was none
	slot              *entry.Slot   // as written
	inUse             *sidecarSet   // a stored SidecarSet with the same selectors, whose need the slot has
}

// limit is how long after its write a SidecarSet has to be stored.
func (r *review) limit() time.Duration {
	if r.inUse != nil {
		return entry.StoredWithin
	}
	return entry.StoredSoon
}

func (r *review) wrote(w *world, s *entry.Slot, e *entry.Entry) {
	r.at, r.slot, r.inUse = w.now, s, nil
	for _, name := range slices.Sorted(maps.Keys(w.stored.sets)) {
		if other := w.stored.sets[name]; other.entry.Name == e.Name && s.Holds(e.Name, other.need()) {
			r.inUse = other
		}
	}
}

// review sends a SidecarSet to a replica. The replica widens for half a second at most.
func (w *world) review(s *sidecarSet, then func(*review)) {
	p, r, over := w.endpoint(), &review{}, false
	if w.hardened {
		w.after(2*time.Millisecond, func() { r.admitted = !p.ended; then(r) })
		return
	}
	end := func(admitted, widened bool) {
		if !over {
			over = true
			r.admitted, r.widened = admitted, widened
			then(r)
		}
	}
	p.after(time.Millisecond, func() {
		p.widen(s.entry, r, w.now+500*time.Millisecond, func(ok bool) { p.after(0, func() { end(true, ok) }) })
		p.after(500*time.Millisecond, func() { end(true, false) })
	})
	w.after(10*time.Second, func() { end(false, false) })
}

// forge is a review that a stranger sends, of a real name or a made-up one.
func (w *world) forge(name string) {
	w.uids++
	s := &sidecarSet{name: name, uid: w.uids, gen: 1 + w.rng.IntN(3), value: pick(w, w.temper.values)}
	if stored := w.stored.sets[name]; stored != nil && w.chance(80) {
		s.uid, s.gen = stored.uid, stored.gen+w.rng.IntN(3)
		if w.chance(50) {
			s.value = stored.value
		}
	} else if w.chance(80) { // an older one of that name
		for uid, contents := range w.history {
			if contents[0].name == name && (s.uid == w.uids || uid > s.uid) {
				s.uid, s.value = uid, contents[len(contents)-1].value
			}
		}
	}
	s.key, _, _ = strings.Cut(s.value, "-")
	s.plan()
	w.note("a stranger sends a review of %v, which selects %s", s, s.value)
	w.review(s, func(*review) {})
}

// store writes the admitted SidecarSet, if nothing else was written meanwhile, and answers the
// client.
func (w *world) store(next sidecarSet, old *sidecarSet, r write, done *review) {
	current := w.stored.sets[next.name]
	switch {
	case !r.update && current != nil: // it exists
		return
	case r.update && (current == nil || current.uid != old.uid || current.gen != old.gen || current.deleting):
		if w.chance(70) {
			w.admit(r)
		}
		return
	case r.update:
		next.ready, next.vouched = current.ready, current.vouched
	}
	inTime := done.at > 0 && !w.stored.wasReset(done.slot)
	if !r.labels {
		inTime = inTime && w.now-done.at <= done.limit()
		if by := done.inUse; inTime && w.now-done.at > entry.StoredSoon {
			now := w.stored.sets[by.name]
			inTime = now != nil && now.uid == by.uid && now.selected == by.selected
		}
		if next.vouched = nil; inTime {
			next.vouched = done.slot
		}
	}
	if w.temper.ambush {
		w.spring()
	}
	s := w.putSet(next)
	w.note("%v is stored; widened: %v, in time: %v", s, done.widened, inTime)
	if !done.widened || !inTime {
		w.counts.warnings++
		w.burst(s)
		return
	}
	w.after(w.between(time.Millisecond, 5*time.Millisecond), func() {
		if w.stored.wasReset(done.slot) {
			return
		}
		w.counts.promises++
		w.promise(s, fmt.Sprintf("the author of %v is answered without a warning", s))
		w.createPod(s.value)
		w.createPod(s.value)
	})
}

// delete is the request of a client who deletes a SidecarSet, which may have a finalizer.
func (w *world) delete(name string) {
	old := w.stored.sets[name]
	if old == nil || old.deleting {
		return
	}
	w.note("a client deletes %v", old)
	if w.chance(70) {
		w.deleteSet(name)
		return
	}
	next := *old
	next.gen, next.deleting, next.vouched = old.gen+1, true, nil
	next.plan()
	w.burst(w.putSet(next))
	w.after(w.upTo(20*time.Second), func() { w.deleteSet(name) })
}

// promise remembers that Pods must have a SidecarSet from now on, and creates some.
func (w *world) promise(s *sidecarSet, why string) {
	w.note("%s", why)
	w.promised[s.uid] = max(w.promised[s.uid], s.gen)
	w.burst(s)
}

// contents are those of a SidecarSet since the promised one.
func (w *world) contents(uid int) []*sidecarSet {
	all := w.history[uid]
	return all[slices.IndexFunc(all, func(s *sidecarSet) bool { return s.gen >= w.promised[uid] }):]
}

// burst soon creates Pods that a SidecarSet selects.
func (w *world) burst(s *sidecarSet) {
	for _, within := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 25 * time.Second} {
		w.after(w.upTo(within), func() { w.createPod(s.value) })
	}
}

// afterDrops creates Pods when needs are gone: this is when a wrong protocol misses Pods.
func (w *world) afterDrops(before, after *entry.Slot) {
	for _, name := range slices.Sorted(maps.Keys(before.Needs)) {
		for _, n := range before.Needs[name] {
			if after.Holds(name, n) {
				continue
			}
			w.counts.dropped++
			w.note("slot %d: need %v of %s is gone, or lower", after.Index, n, name)
			for at := range before.Object.Webhooks {
				if hook := &before.Object.Webhooks[at]; hook.Name == name {
					for _, value := range hook.ObjectSelector.MatchLabels {
						for _, within := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second, 60 * time.Second} {
							w.after(w.upTo(within), func() { w.createPod(value) })
						}
					}
				}
			}
		}
	}
}
