package recreate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/test/rounds"
)

// A cluster of controllers whose Pods are evicted through queue and Ledger, with a watch that
// lags by less than absence, while users change the content and the leader changes. There are
// never more Pods away than maxUnavailable says. No Pod is evicted that was created with the
// current content. A content that does not start costs three Pods, and one that starts reaches
// all Pods. Some contents reach running Pods in place. A Pod in flight that the next content
// does not reach in place keeps its place of the budget.
func TestRecreationKeepsItsLimitsAndEnds(t *testing.T) {
	for seed := range uint64(rounds.Of(2000, 100)) {
		c := newCluster(t, seed)
		for range 3000 {
			c.step()
		}
		c.drain()
		if t.Failed() {
			t.Fatalf("seed %d, maxUnavailable %d, broken content %v", seed, c.limit, c.bad)
		}
	}
}

type cluster struct {
	*testing.T
	*rand.Rand
	limit   int
	slots   int // the number of Pods that the controllers keep
	orphans int // Pods that a new leader does not adopt: not ready, and older than the content
	content int
	base    int  // Pods with this content or a later one follow in place
	bad     bool // the content does not start
	now     int64
	version uint64 // of the last write
	watched uint64 // by the watch
	pods    map[types.UID]*member
	order   []*member // in which they were created
	events  []event
	queue   *rollout.Queue
	ledger  recreate.Ledger
	known   map[types.UID]bool
	matched map[types.UID]event
	away    map[types.UID]bool // Pods that the Ledger no longer waits for
	writes  []*request
	evicted int
	names   int
	leads   int64 // the time at which the leader began
	adopts  bool
}

type member struct {
	uid               types.UID
	controller        podstate.Name
	content, born     int  // that it carries, and with which it was created
	moved             bool // it was updated while it was ready, and is not back
	broken            bool // it will not be ready
	ready, gone, ends bool
	replaced          bool // when it was evicted
}

// event is an event of the watch, and the time at which it happened.
type event struct {
	member
	at      int64
	version uint64
}

// mostLag is how late the watch may be, in seconds.
const mostLag = absence - 1

type request struct {
	take    rollout.Take
	content int
	sent    bool
	version uint64 // of an update in place
	moved   bool
}

func newCluster(t *testing.T, seed uint64) *cluster {
	c := &cluster{T: t, Rand: rand.New(rand.NewPCG(seed, 3)), pods: map[types.UID]*member{}, known: map[types.UID]bool{}, matched: map[types.UID]event{}, away: map[types.UID]bool{}}
	c.limit, c.slots = 1+c.IntN(6), 3+c.IntN(12)
	c.lead()
	for range c.slots {
		c.create(podstate.MakeName(fmt.Sprint("rs-", c.IntN(3))), true)
	}
	c.publish()
	for len(c.events) > 0 { // the list
		c.watch()
	}
	return c
}

// lead gives the leader an empty queue.
func (c *cluster) lead() {
	c.queue = rollout.NewQueue()
	most := intstr.FromInt(c.limit)
	set := &appsv1beta1.SidecarSet{}
	set.Spec.UpdateStrategy.MaxUnavailable = &most
	c.queue.SetStrategy(rollout.NewStrategy(set))
	c.queue.SetContent(fmt.Sprint(c.content))
}

// publish makes a new content the current one, for users and leader at once.
func (c *cluster) publish() {
	c.content++
	if c.IntN(3) > 0 {
		c.base = c.content
	}
	if c.bad, c.evicted = c.IntN(4) == 0, 0; c.adopts {
		c.countOrphans()
	}
	c.queue.SetContent(fmt.Sprint(c.content))
	c.ledger.SetContent(fmt.Sprint(c.content))
	for _, left := range c.ledger.Left() {
		c.away[left.UID] = true
	}
	for _, uid := range slices.Sorted(maps.Keys(c.matched)) {
		c.look(c.matched[uid])
	}
}

func (c *cluster) create(controller podstate.Name, ready bool) {
	c.names++
	m := &member{uid: types.UID(fmt.Sprint("pod-", c.names)), controller: controller, content: c.content, born: c.content, broken: c.bad, ready: ready}
	c.pods[m.uid] = m
	c.order = append(c.order, m)
	c.happened(m)
}

func (c *cluster) happened(m *member) {
	c.version++
	c.events = append(c.events, event{*m, c.now, c.version})
}

func (c *cluster) watch() {
	if len(c.events) == 0 {
		return
	}
	m := c.events[0]
	c.events = c.events[1:]
	c.watched = m.version
	if m.gone {
		c.ledger.Gone(m.uid, c.now)
	}
	if m.gone || m.ends {
		delete(c.matched, m.uid)
		c.queue.Remove(m.uid)
	}
	if !m.gone {
		c.look(m)
	}
}

// look reports to Ledger and queue what a Pod means for the current content.
func (c *cluster) look(m event) {
	outdated := m.content != c.content
	r := recreate.Replacement{UID: m.uid, Controller: m.controller, Back: m.ready && !m.ends, Outdated: outdated}
	if c.known[m.uid] {
		c.ledger.Changed(r)
	} else {
		c.ledger.Added(r, c.now)
	}
	c.known[m.uid] = true
	for _, left := range c.ledger.Left() {
		c.away[left.UID] = true
	}
	if m.ends {
		return
	}
	if m.ready {
		delete(c.away, m.uid)
	}
	c.matched[m.uid] = m
	p := rollout.Pod{UID: m.uid, Namespace: podstate.MakeNamespace("default"), Name: string(m.uid), Ready: m.ready}
	p.InFlight = c.away[m.uid] || m.moved
	switch {
	case outdated && m.content >= c.base:
		p.Way = inplace.Images
	case outdated:
		p.Ready = p.Ready || c.base%2 == 0 // a sidecar was added: the queue does not know more about Pods that lack it
		p.Way, p.Evictable, p.Reason = inplace.Recreate, true, inplace.ImmutableFieldChanged
	}
	c.queue.Set(p)
}

// countOrphans counts the Pods that a new leader will not adopt.
func (c *cluster) countOrphans() {
	c.orphans = 0
	for _, m := range c.order {
		if m.born != c.content && !m.ready && !m.gone && !m.moved {
			c.orphans++
		}
	}
}

// change makes another process the leader, which knows what it can list.
func (c *cluster) change() {
	stopped := c.ledger.Stopped() // the status says so
	c.lead()
	c.ledger = recreate.Ledger{}
	c.ledger.SetContent(fmt.Sprint(c.content))
	c.countOrphans()
	if stopped {
		c.ledger.Stop()
	}
	c.leads, c.adopts = c.now, true
	c.events, c.writes = nil, nil
	clear(c.known)
	clear(c.matched)
	clear(c.away)
	for _, m := range c.order {
		if !m.gone {
			c.happened(m)
		}
	}
	for len(c.events) > 0 {
		c.watch()
	}
}

// adopt is what a leader does after it has led for long enough.
func (c *cluster) adopt() {
	for _, m := range c.order {
		switch {
		case !c.known[m.uid] || m.gone:
		case m.ends:
			c.ledger.AdoptVictim(m.uid, m.controller)
		}
	}
	for _, m := range c.order {
		if _, matched := c.matched[m.uid]; matched && m.born == c.content && m.content == c.content && !m.ready && !m.gone && !m.ends {
			c.ledger.Adopt(recreate.Replacement{UID: m.uid, Controller: m.controller})
		}
	}
	c.adopts = false
}

func (c *cluster) plan() {
	wait := c.adopts && c.now < c.leads+absence
	if c.adopts && !wait && len(c.events) == 0 {
		c.adopt()
	}
	r, _ := c.ledger.Replacements(c.now)
	r.Wait = c.adopts
	c.queue.SetReplacements(r)
	c.queue.SetCounts(len(c.matched), 0)
	if c.adopts {
		return
	}
	for _, take := range c.queue.Next(1+c.IntN(10), c.watched) {
		if take.Way == inplace.Recreate {
			c.ledger.Begin(take.UID, c.pods[take.UID].controller)
		}
		c.writes = append(c.writes, &request{take: take, content: c.content})
	}
}

func (c *cluster) write() {
	if len(c.writes) == 0 {
		return
	}
	i := c.IntN(len(c.writes))
	w := c.writes[i]
	m := c.pods[w.take.UID]
	if w.take.Way == inplace.Images {
		if c.update(w, m) {
			c.writes = append(c.writes[:i], c.writes[i+1:]...)
		}
		return
	}
	if !w.sent {
		w.sent = true
		if w.content != c.content || m.gone || m.ends || m.ready && !w.take.Charged || c.IntN(5) == 0 { // a PodDisruptionBudget
			c.ledger.Cancel(m.uid)
			c.queue.Retry(w.take)
			c.answer()
			c.writes = append(c.writes[:i], c.writes[i+1:]...)
			return
		}
		if m.content == c.content {
			c.Errorf("%+v is evicted", *m)
		}
		c.evicted++
		m.ends = true
		c.happened(m)
		if c.prompt(m.controller) {
			m.replaced = true
			c.create(m.controller, false)
		}
		c.check()
		return
	}
	c.ledger.Accepted(m.uid, c.now)
	c.queue.Hold(w.take, "Evicted", "")
	c.answer()
	c.writes = append(c.writes[:i], c.writes[i+1:]...)
}

// update sends a write in place, and handles its answer later. It returns true when it is
// done.
func (c *cluster) update(w *request, m *member) bool {
	switch {
	case w.sent:
		c.queue.Written(w.take, w.version, w.moved)
		return true
	case w.content != c.content || m.gone || m.ends || m.ready && !w.take.Charged || c.IntN(5) == 0:
		c.queue.Retry(w.take)
		return true
	}
	w.sent = true
	m.content, m.broken, m.moved, m.ready = c.content, c.bad, m.moved || m.ready, false
	c.happened(m)
	w.version, w.moved = c.version, m.moved
	c.check()
	return false
}

// prompt reports whether a controller makes a replacement as soon as a Pod is evicted, as a
// ReplicaSet does. The others wait until the Pod is gone.
func (c *cluster) prompt(controller podstate.Name) bool {
	return controller != podstate.MakeName("rs-0")
}

// answer handles the replacements that an answer of the API server is about.
func (c *cluster) answer() {
	for _, left := range c.ledger.Left() {
		c.away[left.UID] = true
		if m, matched := c.matched[left.UID]; matched {
			c.look(m)
		}
	}
}

func (c *cluster) check() {
	ready := 0
	for _, m := range c.order {
		if m.ready && !m.ends && !m.gone {
			ready++
		}
	}
	if c.bad && c.evicted > 3 {
		c.Errorf("%d Pods are evicted for a content that does not start", c.evicted)
	}
	if away := c.slots - ready; away > c.limit+c.orphans {
		c.Errorf("%d of %d Pods are away, maxUnavailable is %d", away, c.slots, c.limit)
	}
}

// workloads ends Pods, makes new ones, and lets them become ready.
func (c *cluster) workloads() {
	for _, m := range c.order {
		switch {
		case c.IntN(4) > 0 || m.gone:
			continue
		case m.ends:
			m.gone, m.ready, m.moved = true, false, false
			c.happened(m)
			if !m.replaced {
				c.create(m.controller, false)
			}
			return
		case !m.ready && !m.broken:
			m.ready, m.moved = true, false
		default:
			continue
		}
		c.happened(m)
		return
	}
}

func (c *cluster) step() {
	c.now++
	for len(c.events) > 0 && c.now > c.events[0].at+mostLag {
		c.watch()
	}
	switch c.IntN(1000) {
	case 0, 1:
		c.change()
	case 2:
		c.publish()
	}
	switch c.IntN(4) {
	case 0:
		c.watch()
	case 1:
		c.plan()
	case 2:
		c.write()
	default:
		c.workloads()
	}
}

func (c *cluster) drain() {
	for range 200 {
		c.now += 10
		c.plan()
		for range 10 {
			c.write()
			c.workloads()
			c.watch()
			c.watch()
		}
	}
	for _, m := range c.order {
		if !c.bad && !m.gone && m.content != c.content {
			c.Errorf("%+v is never replaced", *m)
			return
		}
	}
}
