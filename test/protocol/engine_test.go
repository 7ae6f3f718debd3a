// Package protocol tests by simulation that no Pod is missed. It simulates replicas, leaders,
// API servers and delays, at random from a seed and in simulated time. It reports a Pod that was
// created without a SidecarSet which the operator had promised.
//
// As in the operator, internal/entry plans the slots and judges needs. This package models what
// surrounds it: etcd, watches, reads, the leader's pass and API servers. It uses no cluster, no
// real clock and no goroutine. See docs/design/0005.
package protocol

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
)

type configuration = admissionregistrationv1.MutatingWebhookConfiguration

// event is an action at a time. Events of the same time happen in the order in which they were
// planned.
type event struct {
	at   time.Duration
	turn int
	do   func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].turn < a[j].turn
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(e any)   { *a = append(*a, e.(event)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// world is one simulated cluster.
type world struct {
	rules     rules
	rng       *rand.Rand
	now       time.Duration
	turns     int
	agenda    agenda
	faults    bool
	tracing   bool
	trace     []string
	violation string
	counts    counts

	stored    stored
	servers   []*apiServer
	processes []*process
	followers []*follower
	// hardened says that the layout is the one in which replicas do not widen.
	hardened bool
	temper   temper
	uids     int
	// history has the contents of each SidecarSet that was stored, by UID. promised is the
	// newest generation that the operator has promised to its author: Pods have it from now on.
	history  map[int][]*sidecarSet
	promised map[int]int
	// disturbed is until when something keeps the leader from its work.
	disturbed time.Duration
}

// temper is which faults happen in one world, and how often. It differs between worlds, because
// worlds in which each fault is equally frequent are all alike.
type temper struct {
	faults  [misfortunes]bool
	long    float64  // percent of faults that last for long
	stalls  bool     // the watch of a replica stalls when something is stored that matters
	late    float64  // percent of SidecarSets that are stored late
	refused float64  // percent of SidecarSets that another webhook refuses
	slow    float64  // percent of requests and of answers that are slow
	thinks  float64  // percent of the leader's passes in which it stops between its reads and its writes
	names   []string // of SidecarSets
	values  []string // of the labels that they select
	// ambush makes faults happen at the worst time: SidecarSets are stored as late as possible;
	// at that moment the watches of API servers and of replicas stall.
	ambush bool
	rest   time.Duration // of clients between two writes
	blind  bool          // the watch of the leader stalls, and it leads on
}

func (w *world) drawTemper() {
	t := &w.temper
	for i := range t.faults {
		t.faults[i] = w.faults && w.chance(50)
	}
	for i := range 1 + w.rng.IntN(4) {
		t.names = append(t.names, fmt.Sprint("set-", i))
	}
	a, b := w.rng.IntN(entry.Slots), w.rng.IntN(entry.Slots)
	t.values = []string{values["app"][a][0], values["tier"][b][0]}
	if w.chance(50) {
		t.values = append(t.values, values["app"][a][1], values["tier"][a][1])
	}
	if t.rest = time.Millisecond; !w.faults {
		return
	}
	t.long, t.late, t.refused, t.slow, t.stalls = w.rng.Float64()*60, w.rng.Float64()*40, 8, 2, w.chance(60)
	switch roll := w.rng.IntN(100); {
	case roll < 50:
		t.ambush, t.late, t.refused, t.slow, t.thinks = true, 50, w.rng.Float64()*40, w.rng.Float64()*30, w.rng.Float64()*20
		t.rest = time.Second + w.upTo(60*time.Second)
		if t.blind = w.chance(20); t.blind {
			t.faults[elections], t.faults[crashes], t.faults[lists], t.refused = false, false, false, 40
		}
		if w.chance(50) {
			t.names, t.values = []string{"set-0", "set-1"}, t.values[:2]
		}
	case roll < 60: // nothing keeps the leader from its work
		t.faults, t.stalls, t.rest = [misfortunes]bool{goesBack: true}, false, w.upTo(100*time.Second)
	default:
		t.thinks = 3
	}
}

// values has label values by key and by the slot of the entry that selects them.
var values = func() map[string]*[entry.Slots][]string {
	all := map[string]*[entry.Slots][]string{"app": {}, "tier": {}}
	for key, slots := range all {
		for i := range 300 {
			s := &sidecarSet{name: "set", key: key, value: fmt.Sprint(key, "-", i)}
			s.plan()
			at := s.entry.Slot()
			slots[at] = append(slots[at], s.value)
		}
	}
	return all
}()

// fault is how long a fault lasts.
func (w *world) fault(usually time.Duration) time.Duration {
	if w.chance(w.temper.long) {
		return w.upTo(longest)
	}
	return w.upTo(usually)
}

// longest is how long a watch is silent at most.
const longest = 250 * time.Second

// spring makes watches stall when a SidecarSet is written.
func (w *world) spring() {
	for _, p := range w.processes {
		if percent := 70.0; !p.ended {
			if p.leads() {
				percent = 20
			}
			if w.chance(percent) {
				p.sets.stall(w.between(time.Second, 80*time.Second))
			}
			if w.chance(20) {
				p.rest.stall(w.between(time.Second, 80*time.Second))
			}
		}
	}
	for _, s := range w.servers {
		for _, f := range s.watches {
			if w.chance(10) {
				f.stall(w.upTo(5 * time.Second))
			}
		}
	}
}

// counts say how much a run has tried.
type counts struct {
	pods, obliged, refused, excused, calls, read int
	promises, warnings, ready, dropped, mended   int
}

func (c *counts) add(o counts) {
	c.pods += o.pods
	c.obliged += o.obliged
	c.refused += o.refused
	c.excused += o.excused
	c.calls += o.calls
	c.read += o.read
	c.promises += o.promises
	c.warnings += o.warnings
	c.ready += o.ready
	c.dropped += o.dropped
	c.mended += o.mended
}

// after calls do later.
func (w *world) after(d time.Duration, do func()) {
	w.turns++
	heap.Push(&w.agenda, event{w.now + d, w.turns, do})
}

// run carries out all events up to a time, or to the first violation.
func (w *world) run(end time.Duration) {
	for len(w.agenda) > 0 && w.violation == "" {
		next := heap.Pop(&w.agenda).(event)
		if next.at > end {
			return
		}
		w.now = next.at
		next.do()
	}
}

func (w *world) note(format string, args ...any) {
	if w.tracing {
		w.trace = append(w.trace, fmt.Sprintf("%11.3f ", w.now.Seconds())+fmt.Sprintf(format, args...))
	}
}

func (w *world) chance(percent float64) bool { return w.rng.Float64()*100 < percent }

// upTo returns a random time below d.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

func (w *world) between(a, b time.Duration) time.Duration { return a + w.upTo(b-a) }

func pick[T any](w *world, some []T) T { return some[w.rng.IntN(len(some))] }

// sidecarSet is one version of a SidecarSet. It never changes.
type sidecarSet struct {
	name       string
	uid, gen   int
	selected   int // the generation since which its selector is the present one
	version    uint64
	key, value string // of the label that it selects
	ignore     bool   // its failure policy
	entry      entry.Entry
	ready      int  // the generation for which the status says Ready
	deleting   bool // it has a finalizer
	// vouched is the first version of its slot that its review has written, if it was stored in
	// time. API servers that use this version or a later one call for it.
	vouched *entry.Slot
}

// plan makes the entry of a SidecarSet.
func (s *sidecarSet) plan() {
	object := &appsv1beta1.SidecarSet{
		ObjectMeta: metav1.ObjectMeta{Name: s.name, UID: types.UID(fmt.Sprintf("%08d", s.uid)), Generation: int64(s.gen)},
		Spec:       appsv1beta1.SidecarSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{s.key: s.value}}},
	}
	if s.ignore {
		object.Annotations = map[string]string{appsv1beta1.AnnotationFailurePolicy: "Ignore"}
	}
	var err error
	if s.entry, err = entry.Of(object); err != nil {
		panic(err)
	}
}

func (s *sidecarSet) need() entry.Need { return s.entry.Needs[0] }

func (s *sidecarSet) selects(labels map[string]string) bool { return labels[s.key] == s.value }

func (s *sidecarSet) String() string { return fmt.Sprintf("%s/%d.%d", s.name, s.uid, s.gen) }

// record is one entry of the log that all watches follow: a SidecarSet or a slot was written or
// deleted.
type record struct {
	version uint64
	set     string
	after   *sidecarSet // nil if the SidecarSet was deleted
	index   int         // of the slot, if set is ""
	slot    *entry.Slot // nil if it was deleted
}

// stored is etcd: one order of all writes.
type stored struct {
	version uint64
	sets    map[string]*sidecarSet
	slots   [entry.Slots]*entry.Slot
	log     []record
}

func (w *world) write(r record) {
	w.stored.version++
	r.version = w.stored.version
	w.stored.log = append(w.stored.log, r)
	for _, f := range w.followers {
		if f.wants(r) {
			f.news(len(w.stored.log))
		}
	}
}

func (w *world) putSet(s sidecarSet) *sidecarSet {
	if w.faults && w.temper.stalls && w.chance(40) {
		w.recent().sets.stall(w.fault(30 * time.Second))
	}
	if before := w.history[s.uid]; len(before) == 0 || before[len(before)-1].gen < s.gen {
		w.history[s.uid] = append(before, &s)
	}
	s.version = w.stored.version + 1
	w.stored.sets[s.name] = &s
	w.write(record{set: s.name, after: &s})
	return &s
}

func (w *world) deleteSet(name string) {
	delete(w.stored.sets, name)
	w.write(record{set: name})
}

// putSlot writes a slot if the stored one is still the one from which the writer began. It
// returns the stored one.
func (w *world) putSlot(i int, next *configuration) (now *entry.Slot, written bool) {
	before := w.stored.slots[i]
	if before == nil || before.Object.ResourceVersion != next.ResourceVersion || before.Object.UID != next.UID {
		return before, false
	}
	if w.faults && w.temper.stalls && w.chance(5) {
		w.recent().rest.stall(w.fault(30 * time.Second))
	}
	version := w.stored.version
	if w.rules.counterReset {
		version = before.Version
	}
	now = w.setSlot(i, next, version+1)
	w.afterDrops(before, now)
	return now, true
}

func (w *world) setSlot(i int, c *configuration, version uint64) *entry.Slot {
	c.ResourceVersion = strconv.FormatUint(version, 10)
	s, err := entry.Parse(c)
	if err != nil {
		panic(err)
	}
	w.stored.slots[i] = s
	w.write(record{index: i, slot: s})
	return s
}

// applySlot creates a slot as the manifests have it.
func (w *world) applySlot(i int) {
	version := w.stored.version + 1
	if w.rules.counterReset {
		version = 1
	}
	w.setSlot(i, &configuration{ObjectMeta: metav1.ObjectMeta{
		Name: entry.ConfigurationName(i), UID: types.UID(fmt.Sprint("slot-", w.stored.version)), Labels: map[string]string{entry.LabelConfiguration: "true"},
	}}, version)
}

// wasReset says whether a slot was deleted since that version; nil is one that did not exist.
func (s *stored) wasReset(since *entry.Slot) bool {
	if since == nil {
		return true
	}
	now := s.slots[since.Index]
	return now == nil || now.Object.UID != since.Object.UID
}

// resetSlot deletes a slot, and applies it again soon. What was promised of its SidecarSets is
// void: the removal itself misses Pods.
func (w *world) resetSlot(i int) {
	if w.stored.slots[i] == nil {
		return
	}
	w.note("somebody deletes slot %d", i)
	for uid := range w.promised {
		if slices.ContainsFunc(w.contents(uid), func(s *sidecarSet) bool { return s.entry.Slot() == i }) {
			delete(w.promised, uid)
		}
	}
	w.stored.slots[i] = nil
	w.write(record{index: i})
	w.after(w.upTo(time.Second), func() { w.applySlot(i) })
}

// follower is one watch: it learns of the log's records in their order, with a delay. A watch
// that is interrupted begins again with a list, whose objects come in any order.
type follower struct {
	w       *world
	name    string
	p       *process // nil if an API server watches
	wants   func(record) bool
	learn   func(record)
	learned int           // how many records it has learned of
	stalled time.Duration // the watch stalls until then, since began
	began   time.Duration
	listing int // objects of a list that are still to come
	ended   bool
}

// news plans that the follower hears of the first length records.
func (f *follower) news(length int) {
	delay := f.w.between(2*time.Millisecond, 50*time.Millisecond)
	if f.w.faults {
		switch roll := f.w.rng.IntN(1000); {
		case roll < 4:
			f.stall(f.w.upTo(60 * time.Second))
		case roll < 40:
			f.stall(f.w.upTo(2 * time.Second))
		}
	}
	f.w.after(delay, func() { f.hear(length) })
}

func (f *follower) stall(d time.Duration) {
	if now := f.w.now; f.stalled < now {
		f.began = now
	}
	f.stalled = min(max(f.stalled, f.w.now+d), f.began+longest)
	if f.p != nil && f.p.leads() {
		f.w.disturb(f.stalled)
	}
}

func (f *follower) hear(length int) {
	switch {
	case f.ended || f.learned >= length:
	case f.stalled > f.w.now:
		f.w.after(f.stalled-f.w.now, func() { f.hear(length) })
	case f.p != nil && f.p.paused > f.w.now:
		f.w.after(f.p.paused-f.w.now, func() { f.hear(length) })
	case f.listing > 0:
		f.w.after(20*time.Millisecond, func() { f.hear(length) })
	default:
		for f.learned < length {
			r := f.w.stored.log[f.learned]
			f.learned++
			if f.wants(r) {
				f.learn(r)
			}
		}
	}
}

// relist begins the watch again. The follower learns of the listed objects one by one.
func (f *follower) relist(objects []record, pause time.Duration) {
	if f.listing > 0 {
		return
	}
	f.learned = len(f.w.stored.log)
	f.w.rng.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
	f.listing = len(objects)
	at := f.w.between(time.Millisecond, 30*time.Millisecond)
	for _, r := range objects {
		if pause > 0 {
			at += f.w.upTo(pause)
		}
		f.w.after(at, func() { f.take(r) })
	}
}

func (f *follower) take(r record) {
	switch {
	case f.ended:
	case f.p.paused > f.w.now:
		f.w.after(f.p.paused-f.w.now, func() { f.take(r) })
	default:
		f.listing--
		f.learn(r)
	}
}

func newWorld(seed uint64, r rules, faults bool) *world {
	w := &world{
		rules: r, rng: rand.New(rand.NewPCG(seed, 9)), faults: faults, promised: map[int]int{}, history: map[int][]*sidecarSet{},
		stored: stored{sets: map[string]*sidecarSet{}},
	}
	w.drawTemper()
	w.hardened = faults && w.chance(20)
	for i := range entry.Slots {
		w.applySlot(i)
	}
	for i := range 1 + w.rng.IntN(3) {
		w.addServer(i)
	}
	for range 1 + w.rng.IntN(3) {
		w.addProcess()
	}
	w.elect()
	return w
}
