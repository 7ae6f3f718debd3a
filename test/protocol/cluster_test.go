package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// apiServer calls the operator by its copies of the shards.
type apiServer struct {
	w            *simulation
	name         string
	shards, past [podwebhook.Shards]*podwebhook.Shard // the copies, nil if deleted, and those before them
	// back has the shards of which it uses an older copy than was propagated, with the rounds before.
	back map[int]int
}

func (w *simulation) addServer(i int) {
	s := &apiServer{w: w, name: fmt.Sprint("api-server-", i), shards: w.stored.shards, back: map[int]int{}}
	for i := range podwebhook.Shards {
		w.followers = append(w.followers, &follower{
			w: w, learned: len(w.stored.log), longest: 5 * time.Second,
			wants: func(r record) bool { return r.set == "" && r.index == i }, learn: s.learn,
		})
	}
	w.servers = append(w.servers, s)
}

// learn takes in a shard. Sometimes an API server continues using the copy before, until the shard is
// written again.
func (s *apiServer) learn(r record) {
	i := r.index
	_, back := s.back[i]
	switch stuck := s.w.faults && s.w.chance(5); {
	case stuck && back:
		s.back[i] = s.w.rounds[i]
	case stuck:
	case back:
		s.past[i], s.shards[i] = nil, r.shard
		delete(s.back, i)
	default:
		s.past[i], s.shards[i] = s.shards[i], r.shard
	}
}

// goBack makes the API server use an older copy of one shard.
func (s *apiServer) goBack(i int) {
	if s.w.wasReset(s.past[i]) || s.w.wasReset(s.shards[i]) {
		return
	}
	s.w.note("%s goes back to an older copy of shard %d: %d", s.name, i, s.past[i].Serial)
	s.shards[i], s.past[i], s.back[i] = s.past[i], nil, s.w.rounds[i]
}

// isBack says whether an API server uses an older copy of a shard than was propagated, and leaders have
// not found that three times yet.
func (s *apiServer) isBack(i int) bool {
	since, back := s.back[i]
	return back && s.w.rounds[i] < since+3
}

// uses says what a probe of the probe shows: the API server uses that serial, or one of the few
// that followed.
func (s *apiServer) uses(i int, serial uint64) bool {
	c := s.shards[i]
	return c != nil && !c.IsEmpty() && (c.Serial == serial || slices.Contains(c.Earlier, serial))
}

// client is one random action of a user.
func (w *simulation) client() {
	name, value := pick(w, w.temper.names), pick(w, w.temper.values)
	switch roll := w.rng.IntN(100); {
	case roll < 35:
		w.admit(name, value, false)
	case roll < 50:
		w.admit(name, value, true)
	case roll < 68:
		w.admit(name, "", true)
	case roll < 80:
		if w.delete(name); roll < 74 { // and recreates it
			w.after(w.upTo(100*time.Millisecond), func() { w.admit(name, value, false) })
		}
	default:
		w.createPod(value)
	}
}

// admit is the request of a client who creates a SidecarSet or updates it. It selects the value
// then; "" leaves it.
func (w *simulation) admit(name, value string, update bool) {
	next := &sidecarSet{name: name, gen: 1}
	var old *sidecarSet
	if update {
		old = w.stored.sets[name]
	}
	switch {
	case update && (old == nil || old.deleting):
		return
	case update:
		if *next = *old; value != "" || w.chance(90) { // else it changes labels only
			next.gen++
		}
	default:
		w.uids++ // also if the name exists: the API server sees that after the review
		next.uid = w.uids
	}
	if value != "" && value != next.value {
		next.value, next.since = value, next.gen
	}
	next.ignore = w.chance(20)
	next.plan()
	w.note("a client writes %v", next)
	reviewed := *next
	if w.wrong == wrongShard && update && value != "" {
		reviewed.webhook = old.webhook
		reviewed.webhook.Dependencies = next.webhook.Dependencies
	}
	again := func() { w.admit(name, value, update) }
	w.review(&reviewed, func(r *review) {
		switch {
		case !w.chance(w.temper.refused):
			delay := w.between(time.Millisecond, 20*time.Millisecond)
			if w.chance(w.temper.late) {
				delay = r.at + r.limit() - w.lag(r.limit()) - w.now
			}
			w.after(delay, func() { w.store(next, old, r, again) })
		case w.chance(60): // the client tries again, maybe when the leader is about to drop the dependency
			w.note("%v is refused", next)
			w.after(r.at+r.limit()+w.upTo(3*time.Second)-w.lag(r.limit())-w.now, again)
		}
	})
}

// review is one review of a SidecarSet.
type review struct {
	registered bool
	at         time.Duration     // of the write; 0 if there was none
	shard      *podwebhook.Shard // as written
	// inUse is a stored SidecarSet with the same selectors, whose need the shard has. A leader that is
	// behind does not know of others.
	inUse *sidecarSet
}

// limit is how long after the review's write the SidecarSet has to be stored.
func (r *review) limit() time.Duration {
	if r.inUse != nil {
		return podwebhook.StoredWithin
	}
	return podwebhook.StoredSoon
}

// review sends a SidecarSet to a replica, which registers for half a second at most.
func (w *simulation) review(s *sidecarSet, then func(*review)) {
	p, r := pick(w, w.processes), &review{}
	answer := once(func(ok bool) { r.registered = ok; then(r) })
	p.after(time.Millisecond, func() {
		p.register(s.webhook, r, w.now+500*time.Millisecond, func(ok bool) { p.after(0, func() { answer(ok) }) })
		p.after(500*time.Millisecond, func() { answer(false) })
	})
}

// forge is a review that an unauthenticated client sends, of a real name or a made-up one.
func (w *simulation) forge() {
	w.uids++
	s := sidecarSet{name: pick(w, w.temper.names), uid: w.uids, gen: 1, value: pick(w, w.temper.values)}
	if len(w.past) > 0 && w.chance(80) {
		value := s.value
		if s = *pick(w, w.past); w.chance(50) {
			s.value = value
		}
		s.gen += w.rng.IntN(3)
	}
	w.note("an unauthenticated client sends a review of %v", s.plan())
	w.review(&s, func(*review) {})
}

// store writes the admitted SidecarSet, if nothing else was written meanwhile, and answers the
// client. old is nil if it is created.
func (w *simulation) store(next, old *sidecarSet, r *review, again func()) {
	switch now := w.stored.sets[next.name]; {
	case old == nil && now != nil: // it exists
		return
	case old != nil && (now == nil || now.uid != old.uid || now.gen != old.gen || now.deleting):
		again()
		return
	case old != nil:
		next.ready, next.vouched = now.ready, now.vouched
	}
	inTime := r.at > 0 && !w.wasReset(r.shard)
	if old == nil || next.gen > old.gen {
		took := w.now - r.at
		if inTime = inTime && took <= r.limit(); inTime && took > podwebhook.StoredSoon { // its selectors must still be in use
			now := w.stored.sets[r.inUse.name]
			inTime = now != nil && now.uid == r.inUse.uid && now.since == r.inUse.since
		}
		if next.vouched = nil; inTime {
			next.vouched = r.shard
		}
	}
	s := w.putSet(*next)
	w.note("%v is stored; registered: %v, in time: %v", s, r.registered, inTime)
	w.burst(s.value)
	if !r.registered || !inTime {
		w.counts["not promised"]++
		return
	}
	w.after(w.between(time.Millisecond, 5*time.Millisecond), func() {
		if !w.wasReset(r.shard) {
			w.promise(s, "its user is answered without a warning")
		}
	})
}

// delete is the request of a client who deletes a SidecarSet, which may have a finalizer.
func (w *simulation) delete(name string) {
	old := w.stored.sets[name]
	if old == nil || old.deleting {
		return
	}
	w.note("a client deletes %v", old)
	next, delay := *old, time.Duration(0)
	if w.chance(30) {
		next.gen, next.deleting, next.vouched = old.gen+1, true, nil
		w.putSet(*next.plan())
		delay = w.upTo(20 * time.Second)
	}
	w.after(delay, func() {
		delete(w.stored.sets, name)
		w.write(record{set: name})
	})
}

// promise remembers that Pods must have a SidecarSet from now on, and creates some.
func (w *simulation) promise(s *sidecarSet, why string) {
	w.note("%v: %s", s, why)
	w.counts["promises"]++
	w.promised[s.uid] = max(w.promised[s.uid], s.gen)
	w.createPod(s.value)
	w.burst(s.value)
}

// burst creates Pods that have a label, most of them soon.
func (w *simulation) burst(value string) {
	for range 5 {
		w.after(w.lag(60*time.Second), func() { w.createPod(value) })
	}
}

// misfortunes are the faults that happen at any time.
var misfortunes = []func(*simulation){
	(*simulation).rename,
	(*simulation).elect,
	(*simulation).forge,
	func(w *simulation) { // another process begins instead of one that crashes, and leads later
		p := pick(w, w.processes)
		w.note("%s crashes", p.name)
		p.ended = true
		w.processes = slices.DeleteFunc(w.processes, func(o *process) bool { return o == p })
		w.followers = slices.DeleteFunc(w.followers, func(f *follower) bool { return f == p.sets || f == p.rest })
		if w.addProcess(); p.leader != nil && !p.leader.ended {
			w.after(w.upTo(17*time.Second), w.elect)
		}
	},
	func(w *simulation) {
		if s := w.stored.sets[pick(w, w.temper.names)]; s != nil {
			pick(w, w.servers).goBack(pick(w, w.shardsOf(s.webhook.Name)))
			w.after(w.upTo(100*time.Second), func() { w.createPod(s.value) })
		}
	},
	func(w *simulation) { // a user deletes a shard, and applies it again soon
		s := w.stored.sets[pick(w, w.temper.names)]
		if s == nil || w.chance(80) {
			return
		}
		i := pick(w, w.shardsOf(s.webhook.Name))
		if w.stored.shards[i] == nil {
			return
		}
		w.note("a user deletes shard %d", i)
		// What was promised of its SidecarSets is void: the removal itself misses Pods.
		maps.DeleteFunc(w.promised, func(uid, gen int) bool {
			return slices.ContainsFunc(w.since(uid, gen), func(s *sidecarSet) bool { return slices.Contains(w.shardsOf(s.webhook.Name), i) })
		})
		w.stored.shards[i] = nil
		w.write(record{index: i})
		w.after(w.upTo(time.Second), func() { w.applyShard(i) })
	},
}
