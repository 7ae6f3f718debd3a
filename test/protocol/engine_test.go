// Package protocol tests by simulation that no Pod is missed. It simulates replicas, leaders,
// API servers, their clocks and delays, at random from a seed and in simulated time. It reports
// a Pod that was created without a SidecarSet which the operator had promised.
//
// As in the operator, internal/entryplan plans the entry objects, and measures windows and the
// limit of provisional entries. This package models what surrounds the planner: watches,
// freshness, trust, the leader's pass and API servers. It uses no cluster, no real clock and no
// goroutine. See docs/design/0008.
package protocol

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
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
	hardened  bool
	temper    temper
	elections int
	uids      int
	// promised is, by UID of a SidecarSet, the newest generation that the operator has promised
	// to its author: Pods have it from now on.
	promised map[int]int
	// reviewed is, by name, the content that was recorded last.
	reviewed map[string]string
}

// temper is which faults happen in one world, and how often. It differs between worlds, because
// worlds in which each fault is equally frequent are all alike.
type temper struct {
	faults [misfortunes]bool
	long   float64 // percent of faults that last for long
	stalls bool    // the watch of a replica stalls when something is stored that matters
	late   float64 // percent of SidecarSets that are stored late
	names  int
	values int
	anew   bool // a new leader records that any SidecarSet may be between admission and storage
	// ambush makes faults happen at the worst time: SidecarSets are stored as late as possible;
	// at that moment the watches of API servers and of replicas that do not lead stall; leaders
	// stop between plan and write; replicas stop in the middle of a check.
	ambush bool
}

func (w *world) drawTemper() {
	t := &w.temper
	for i := range t.faults {
		t.faults[i] = w.chance(50)
	}
	t.long, t.late, t.stalls = w.rng.Float64()*60, w.rng.Float64()*40, w.chance(60)
	t.names, t.values, t.anew = 1+w.rng.IntN(4), 1+w.rng.IntN(2), w.chance(20)
	if t.ambush = w.faults && w.chance(50); t.ambush {
		t.names, t.values, t.late = 2, 1, 50
	}
}

// fault is how long a fault lasts.
func (w *world) fault(usually time.Duration) time.Duration {
	if w.chance(w.temper.long) {
		return w.upTo(250 * time.Second)
	}
	return w.upTo(usually)
}

// spring makes watches stall when a SidecarSet is written.
func (w *world) spring() {
	for _, p := range w.processes {
		if (p.leader == nil || p.leader.ended) && w.chance(70) {
			p.watches[0].stall(w.between(5*time.Second, 80*time.Second))
		}
	}
	for _, s := range w.servers {
		if w.chance(20) {
			s.watch.stall(w.upTo(5 * time.Second))
		}
	}
}

// counts say how much a run has tried.
type counts struct {
	pods, obliged, refused, excused, calls, promises, warnings, ready, narrowed int
	named, read, listed                                                         int // answers on the fresh path: by the names alone, by reading some, by a list
}

func (c *counts) add(o counts) {
	c.pods += o.pods
	c.obliged += o.obliged
	c.refused += o.refused
	c.excused += o.excused
	c.calls += o.calls
	c.promises += o.promises
	c.warnings += o.warnings
	c.ready += o.ready
	c.narrowed += o.narrowed
	c.named += o.named
	c.read += o.read
	c.listed += o.listed
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

// sidecarSet is one version of a SidecarSet. It never changes.
type sidecarSet struct {
	name     string
	uid      int
	object   int // the uid, as far as its content tells it
	gen      int // of the content
	selected int // the generation since which its selector is the present one
	version  uint64
	key      string // of the label that it selects
	value    string
	entry    entryplan.Entry
	ready    int    // the generation for which the status says Ready
	vouched  uint64 // the first version of a configuration that its review has written; 0 if none
}

func (s *sidecarSet) selects(labels map[string]string) bool { return labels[s.key] == s.value }

// content identifies what the SidecarSet injects into new Pods, in the form of
// entryplan.Content.
func (s *sidecarSet) content() string { return fmt.Sprintf("%d.%d.%d", s.gen, s.object, s.uid) }

func (s *sidecarSet) String() string { return fmt.Sprintf("%s/%d.%d", s.name, s.uid, s.gen) }

// record is one entry of the log that all watches follow: a SidecarSet or a configuration was
// written, or a SidecarSet was deleted.
type record struct {
	version uint64
	set     string
	after   *sidecarSet // nil if the SidecarSet was deleted
	index   int         // of the configuration, if set is ""
	config  *configuration
}

// stored is etcd: one order of all writes.
type stored struct {
	version uint64
	sets    map[string]*sidecarSet
	configs entryplan.Layout
	log     []record
}

func (w *world) write(r record) {
	w.stored.version++
	r.version = w.stored.version
	w.stored.log = append(w.stored.log, r)
	for _, f := range w.followers {
		f.news(len(w.stored.log))
	}
}

func (w *world) putSet(s sidecarSet) *sidecarSet {
	if w.faults && w.temper.stalls && w.chance(40) {
		f := w.processes[len(w.processes)-1-w.rng.IntN(min(3, len(w.processes)))].watches[0]
		f.stall(w.fault(30 * time.Second))
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

// putConfig writes a configuration if the stored one is still the one from which the writer
// began.
func (w *world) putConfig(change entryplan.Change) (*configuration, bool) {
	before := w.stored.configs[change.Index]
	if before.ResourceVersion != change.Object.ResourceVersion {
		return before, false
	}
	c := change.Object.DeepCopy()
	c.ResourceVersion = strconv.FormatUint(w.stored.version+1, 10)
	w.stored.configs[change.Index] = c
	w.write(record{index: change.Index, config: c})
	w.afterNarrowing(before, c)
	return c, true
}

func versionOf(c *configuration) uint64 {
	version, err := strconv.ParseUint(c.ResourceVersion, 10, 64)
	if err != nil {
		panic(err)
	}
	return version
}

// bare returns the entry objects of the manifests, with the limit of provisional entries and the
// recorded names as a leader leaves them.
func bare() (l entryplan.Layout) {
	for i := range l {
		l[i] = &configuration{ObjectMeta: metav1.ObjectMeta{
			Name: entryplan.ConfigurationName(i), UID: "uid", ResourceVersion: "1", Labels: map[string]string{entryplan.LabelConfiguration: "true"},
		}}
	}
	l[entryplan.Provisional].Annotations = map[string]string{"sidecarset.io/provisional-room": strconv.Itoa(entryplan.MaxProvisional), "sidecarset.io/recent": `{"names":{}}`}
	return l
}

// follower is one watch: it learns of the log's records in their order, with a delay. A watch
// that is interrupted begins again with a list, whose objects come in any order.
type follower struct {
	w       *world
	name    string
	active  func() bool // false while the process is paused or has ended
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
	if f.ended {
		return
	}
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
	f.stalled = min(max(f.stalled, f.w.now+d), f.began+f.w.rules.stall)
}

func (f *follower) hear(length int) {
	switch {
	case f.ended || f.learned >= length:
	case f.stalled > f.w.now:
		f.w.after(f.stalled-f.w.now, func() { f.hear(length) })
	case f.listing > 0 || !f.active():
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
	case !f.active():
		f.w.after(20*time.Millisecond, func() { f.take(r) })
	default:
		f.listing--
		f.learn(r)
	}
}

func newWorld(seed uint64, r rules, faults bool) *world {
	w := &world{
		rules: r, rng: rand.New(rand.NewPCG(seed, 9)), faults: faults, promised: map[int]int{}, reviewed: map[string]string{},
		stored: stored{version: 1, sets: map[string]*sidecarSet{}, configs: bare()},
	}
	w.drawTemper()
	w.hardened = faults && w.chance(20)
	for i := range 1 + w.rng.IntN(3) {
		w.addServer(i)
	}
	for range 1 + w.rng.IntN(3) {
		w.addProcess()
	}
	w.elect()
	return w
}
