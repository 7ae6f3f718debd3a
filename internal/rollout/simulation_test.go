package rollout_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/test/rounds"
)

// simPod is a Pod as the model API server stores it.
type simPod struct {
	number  int
	version uint64
	alive   bool // exists and has not finished
	matched bool
	content int // of its spec
	running int // what the kubelet has started
	ready   bool
	// disturbed: the record on the Pod says that it was available when it was
	// written, and its status does not show yet that it is back.
	disturbed bool
	broken    bool // its app does not become ready
	lost      bool // its node is dead
	pinned    bool // it cannot follow in place
	refuses   bool // the API server refuses writes of it
}

// ordinals are the labels that Pods have in turn.
var ordinals = [5]podstate.LabelSet{
	podstate.MakeLabelSet(map[string]string{"ord": "web-3"}), podstate.MakeLabelSet(map[string]string{"ord": "web-1"}), podstate.MakeLabelSet(nil),
	podstate.MakeLabelSet(map[string]string{"ord": "web-2"}), podstate.MakeLabelSet(map[string]string{"ord": "web-1"}),
}

// bad contents do not start.
func bad(content int) bool { return content%3 == 2 }

func (p *simPod) uid() types.UID { return types.UID(strconv.Itoa(p.number)) }

// seen is the Pod in the view of a leader that wants a content.
func (p *simPod) seen(wanted int) rollout.Pod {
	pod := ready(p.number)
	pod.UID, pod.Ready, pod.InFlight = p.uid(), p.ready, p.disturbed && !p.lost
	pod.Labels = ordinals[p.number%len(ordinals)]
	switch {
	case p.content == wanted:
		pod.Way = inplace.Current
	case p.lost:
		pod.Way, pod.Reason = inplace.LeaveAlone, inplace.NodeNotReady
	case p.pinned:
		pod.Way, pod.Reason = inplace.Recreate, inplace.ImmutableFieldChanged
	}
	return pod
}

// world is a model API server, its kubelets and users, and the leaders.
type world struct {
	*testing.T
	*rand.Rand
	version  uint64
	pods     map[types.UID]*simPod
	events   []simPod
	contents int
	wanted   int
	strategy *rollout.Strategy
	limit    int  // maxUnavailable
	kept     int  // partition
	trial    bool // first-batch 1
	churn    bool // Pods come, go and change
	scatters bool // the strategy scatters
	leader   *leader
	// hurt counts the available Pods that each content disturbed.
	hurt  map[int]int
	takes int
}

// leader is one process that leads: a queue, the watch, and an executor.
type leader struct {
	*world
	queue   *rollout.Queue
	cache   map[types.UID]simPod
	read    int // events
	watched uint64
	wanted  int
	writes  []*simWrite
	deposed bool
}

// simWrite is one Pod in the hands of the executor.
type simWrite struct {
	take      rollout.Take
	read      uint64 // the version that a GET returned; 0 before
	content   int
	done      uint64 // the version that the PATCH returned; 0 before
	disturbed bool
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{T: t, Rand: rand.New(rand.NewPCG(seed, 2)), pods: map[types.UID]*simPod{}, contents: 1, wanted: 1, hurt: map[int]int{}}
	w.limit, w.churn = 1+w.IntN(4), seed%2 == 0
	w.trial = seed%3 == 0
	if seed%5 == 0 {
		w.kept = w.IntN(5)
	}
	u := update{MaxUnavailable: share(strconv.Itoa(w.limit)), Partition: share(strconv.Itoa(w.kept))}
	if seed%4 < 2 {
		u.PriorityStrategy = byOrder("ord")
	}
	if w.scatters = seed%7 == 0; w.scatters {
		u.ScatterStrategy = scatterOver("ord", "*")
	}
	if w.strategy = strategy(u); w.trial {
		w.strategy = firstBatch(u, "1")
	}
	for range 4 + w.IntN(12) {
		w.create()
	}
	w.elect()
	return w
}

func (w *world) create() {
	w.store(&simPod{number: len(w.pods), alive: true, matched: true, content: w.wanted, running: w.wanted, ready: !bad(w.wanted) && w.IntN(8) > 0, pinned: w.IntN(10) == 0})
}

func (w *world) store(p *simPod) {
	w.version++
	p.version = w.version
	w.pods[p.uid()] = p
	w.events = append(w.events, *p)
}

func (w *world) any() *simPod { return w.pods[types.UID(strconv.Itoa(w.IntN(len(w.pods))))] }

// elect starts a new leader, which lists the Pods.
func (w *world) elect() {
	l := &leader{world: w, queue: rollout.NewQueue(), cache: map[types.UID]simPod{}, read: len(w.events), watched: w.version, wanted: w.wanted}
	l.queue.SetStrategy(w.strategy)
	l.queue.SetContent(strconv.Itoa(l.wanted))
	for _, p := range w.pods {
		l.see(*p)
	}
	w.leader = l
}

// depose lets requests that the leader has sent arrive or not, and ends its right to send
// others, as the end of its Lease does. The old leader's view affects no Pod any more.
func (w *world) depose() {
	old := w.leader
	for _, x := range old.writes {
		if x.read != 0 && x.done == 0 && w.IntN(2) == 0 {
			old.patch(x)
		}
	}
	old.deposed = true
	w.elect()
}

func (l *leader) see(p simPod) {
	if !p.alive || !p.matched {
		delete(l.cache, p.uid())
		l.queue.Remove(p.uid())
		return
	}
	l.cache[p.uid()] = p
	l.queue.Set(p.seen(l.wanted))
}

func (l *leader) watch(n int) {
	for ; n > 0 && l.read < len(l.events); n-- {
		p := l.events[l.read]
		l.read++
		l.see(p)
		l.watched = p.version
	}
}

func (l *leader) learn() {
	l.wanted = l.world.wanted
	l.queue.SetContent(strconv.Itoa(l.wanted))
	for _, p := range l.cache {
		l.queue.Set(p.seen(l.wanted))
	}
}

func (l *leader) plan() {
	back := 0
	for _, p := range l.cache {
		if p.content == l.wanted && p.ready && !p.disturbed {
			back++
		}
	}
	l.queue.SetCounts(len(l.cache), back)
	size := 1 + l.IntN(20)
	takes := l.queue.Next(size, l.watched)
	for _, take := range takes {
		if p := l.pods[take.UID]; p.content == l.wanted && !l.deposed {
			l.Errorf("Pod %s is taken again for content %d", take.UID, l.wanted)
		}
		l.writes = append(l.writes, &simWrite{take: take, content: l.wanted})
		l.takes++
	}
	// With scatter, the order of the remaining Pods may change. The end of each write makes
	// the leader look at them again.
	final := len(takes) < size && (len(takes) == 0 || !l.scatters)
	if r := l.queue.Report(); final && r.Waiting > 0 && r.Limit == rollout.Unlimited {
		l.Errorf("%d Pods wait and nothing limits them, but none is taken: %+v", r.Waiting, r)
	}
}

// write does the next step for one Pod: GET, PATCH, answer.
func (l *leader) write(i int) {
	x := l.writes[i]
	switch {
	case x.done != 0:
		l.queue.Written(x.take, x.done, x.disturbed)
	case x.read == 0:
		if answered := l.get(x); !answered {
			return
		}
	default:
		if x.read == 0 || !l.deposed && l.patch(x) {
			return
		}
		l.queue.Retry(x.take) // a conflict, or not the leader any more
	}
	l.writes = append(l.writes[:i], l.writes[i+1:]...)
}

func (l *leader) get(x *simWrite) (answered bool) {
	switch p := l.pods[x.take.UID]; {
	case !p.alive || !p.matched || !x.take.Charged && p.ready && !p.disturbed:
		l.queue.Retry(x.take)
	case p.content == x.content:
		l.queue.Written(x.take, p.version, p.disturbed)
	case p.refuses || p.pinned || p.lost:
		l.queue.Hold(x.take, inplace.Refused, "refused")
	default:
		x.read = p.version
		return false
	}
	return true
}

func (l *leader) patch(x *simWrite) bool {
	p := l.pods[x.take.UID]
	if p.version != x.read {
		return false
	}
	fresh := p.ready && !p.disturbed && !p.lost
	p.content, p.disturbed = x.content, p.disturbed || p.ready
	l.store(p)
	x.done, x.disturbed = p.version, p.disturbed
	if fresh {
		l.hurt[p.content]++
		l.checkBudget()
	}
	l.checkPartition(x.content)
	return true
}

func (w *world) checkBudget() {
	disturbed := 0
	for _, p := range w.pods {
		if p.alive && p.matched && !p.lost && p.disturbed {
			disturbed++
		}
	}
	if disturbed > w.limit {
		w.Errorf("%d Pods that were available are disturbed, maxUnavailable is %d", disturbed, w.limit)
	}
}

func (w *world) checkPartition(content int) {
	if w.churn || content != w.wanted {
		return
	}
	if old := w.outdated(); old < w.kept {
		w.Errorf("%d Pods are outdated, partition keeps %d", old, w.kept)
	}
}

func (w *world) outdated() (n int) {
	for _, p := range w.pods {
		if p.alive && p.matched && p.content != w.wanted {
			n++
		}
	}
	return n
}

// kubelet does the next change of one Pod's status.
func (w *world) kubelet(p *simPod) {
	before := *p
	fits := !p.broken && !bad(p.content)
	switch {
	case !p.alive || p.lost:
	case p.running != p.content && p.ready && w.IntN(2) == 0:
		p.ready = false // killed; or the Pod stays ready all the time
	case p.running != p.content:
		p.running = p.content
	default:
		p.ready = fits
		if !bad(p.content) { // it is ready, or was and its app broke
			p.disturbed = false
		}
	}
	if *p != before {
		w.store(p)
	}
}

// users change a Pod, or the SidecarSet.
func (w *world) users() {
	p := w.any()
	before := *p
	switch action := w.IntN(12); {
	case action < 2:
		w.contents++
		w.wanted = w.contents
		w.leader.learn()
	case action == 2:
		p.refuses = !p.refuses
	case !w.churn:
	case action == 3:
		w.create()
	case action == 4:
		p.alive = false
	case action == 5 && (p.matched || !p.disturbed):
		p.matched = !p.matched
	case action == 6:
		p.broken = !p.broken
	case action == 7 && w.IntN(3) == 0:
		p.lost = true
	}
	if *p != before && before.alive {
		w.store(p)
	} else if *p != before {
		*p = before
	}
}

func (w *world) step(deposed *leader) {
	l := w.leader
	if deposed != nil && w.IntN(4) == 0 {
		l = deposed
	}
	switch w.IntN(8) {
	case 0, 1:
		w.kubelet(w.any())
	case 2, 3:
		l.watch(w.IntN(6))
	case 4:
		l.plan()
	default:
		if len(l.writes) > 0 {
			l.write(w.IntN(len(l.writes)))
		}
	}
}

// Under any order of events, answers and changes of leader: the budget and the
// partition hold, no Pod is taken twice for one content, the queue gives out a Pod if
// it may, and the rollout ends.
func TestARolloutKeepsItsLimitsAndEnds(t *testing.T) {
	takes, disturbed := 0, 0
	for seed := range uint64(rounds.Of(2000, 200)) {
		w := newWorld(t, seed)
		for range 600 {
			switch n := w.IntN(100); {
			case n < 3:
				w.users()
			case n == 3:
				old := w.leader
				w.depose()
				w.step(old)
			case n == 4 && len(w.leader.writes) > 0: // an executor that never answers
				w.leader.writes = w.leader.writes[1:]
			default:
				w.step(nil)
			}
		}
		w.finish()
		takes += w.takes
		for content, n := range w.hurt {
			disturbed += n
			if w.trial && !w.churn && bad(content) && n > 1 {
				t.Errorf("the first batch is one Pod, but content %d, which does not start, took down %d", content, n)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d, maxUnavailable %d, partition %d, first batch %v, churn %v", seed, w.limit, w.kept, w.trial, w.churn)
		}
	}
	t.Logf("%d Pods taken, %d of them disturbed while they were available", takes, disturbed)
}

// finish stops the users, with a last content that works, and runs until no event is left.
func (w *world) finish() {
	for _, p := range w.pods {
		if p.refuses && p.alive {
			p.refuses = false
			w.store(p)
		}
	}
	w.depose()
	w.contents++
	for w.wanted = w.contents; bad(w.wanted); w.wanted = w.contents {
		w.contents++
	}
	w.leader.learn()
	down, room := 0, -w.kept
	for _, p := range w.pods {
		if p.alive && p.matched && p.disturbed && !p.lost {
			down++
		}
		if p.alive && p.matched && !p.pinned && !p.lost {
			room++
		}
	}
	for range 400 {
		before := fmt.Sprint(w.version, w.takes, len(w.leader.writes))
		w.leader.plan()
		for len(w.leader.writes) > 0 {
			w.leader.write(w.IntN(len(w.leader.writes)))
		}
		for range 3 {
			for _, p := range w.pods {
				w.kubelet(p)
			}
		}
		w.leader.watch(len(w.events))
		if fmt.Sprint(w.version, w.takes, len(w.leader.writes)) == before {
			break
		}
	}
	stay := 0
	for _, p := range w.pods {
		if p.alive && p.matched && p.content != w.wanted && !p.pinned && !p.lost {
			stay++
		}
	}
	// Pods that a bad content has made unavailable go first. So partition keeps one only if
	// there are more of them than it lets go.
	r := w.leader.queue.Report()
	done := r.Waiting == r.Kept && r.Taken == 0 && r.InTransition == 0 && r.Limit != rollout.Invalid
	if stay > w.kept || !done && r.Used == 0 {
		w.Errorf("the rollout ends with %d Pods that could follow, of which partition keeps %d: %+v", stay, w.kept, r)
	}
	if r.Used > max(0, down-max(0, room)) {
		w.Errorf("the rollout ends with %d Pods that are down; there were %d of them, and partition left room for %d", r.Used, down, room)
	}
}

// A new leader knows from the Pods alone that the first batch is not done.
func TestANewLeaderGoesOnWithTheFirstBatch(t *testing.T) {
	down := ready(1)
	down.Way, down.InFlight, down.Ready = inplace.Current, true, false
	pods := []rollout.Pod{down, ready(2), broken(3)}
	q := queue(firstBatch(update{MaxUnavailable: share("5")}, "1"), pods...)
	expect(t, "while the first Pod is not back", q.Next(10, 0))
	q.Set(current(1))
	q.SetCounts(3, 1)
	expect(t, "when it is", q.Next(10, 0), "pod-000003 free", "pod-000002")
}

// If no available Pod is left to test the content, waiting has no use.
func TestAFirstBatchOfBrokenPodsGoesOn(t *testing.T) {
	q := queue(firstBatch(update{}, "1"), broken(1), broken(2))
	expect(t, "taken", q.Next(10, 0), "pod-000001 free", "pod-000002 free")
}

// A Pod that a bad image has made unavailable gets the good one at once.
func TestTheFirstBatchRepairsItsOwnUnavailablePods(t *testing.T) {
	down := broken(1)
	down.InFlight = true
	q := queue(firstBatch(update{MaxUnavailable: share("5")}, "1"), down, ready(2), broken(3))
	expect(t, "taken", q.Next(10, 0), "pod-000001")
}

func current(i int) rollout.Pod {
	p := ready(i)
	p.Way = inplace.Current
	return p
}
