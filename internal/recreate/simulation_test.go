package recreate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// A cluster of controllers whose Pods are evicted through queue and Ledger, with a
// watch that lags by less than absence. Never are more Pods away than maxUnavailable says, no Pod is
// evicted that was created with the current content, a content that does not start
// costs three Pods, and one that does reaches all of them, whenever the leader changes.
func TestRecreationKeepsItsLimitsAndEnds(t *testing.T) {
	for seed := range uint64(2000) {
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
	bad     bool
	now     int64
	pods    map[types.UID]*member
	order   []*member // in which they were created
	events  []event
	queue   *rollout.Queue
	ledger  recreate.Ledger
	known   map[types.UID]bool
	matched map[types.UID]bool
	writes  []*request
	evicted int
	names   int
	leads   int64 // since when
	adopts  bool
}

type member struct {
	uid               types.UID
	controller        podstate.Name
	current           bool
	ready, gone, ends bool
}

// event is what the watch brings, and when it happened.
type event struct {
	member
	at int64
}

// mostLag is how late the watch may be, in seconds.
const mostLag = absence - 1

type request struct {
	take rollout.Take
	sent bool
}

func newCluster(t *testing.T, seed uint64) *cluster {
	c := &cluster{T: t, Rand: rand.New(rand.NewPCG(seed, 3)), pods: map[types.UID]*member{}, known: map[types.UID]bool{}, matched: map[types.UID]bool{}}
	c.limit, c.bad = 1+c.IntN(6), seed%4 == 0
	c.lead()
	for range 3 + c.IntN(12) {
		c.create(podstate.MakeName(fmt.Sprint("rs-", c.IntN(3))), false, true)
	}
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
}

func (c *cluster) create(controller podstate.Name, current, ready bool) {
	c.names++
	m := &member{uid: types.UID(fmt.Sprint("pod-", c.names)), controller: controller, current: current, ready: ready}
	c.pods[m.uid] = m
	c.order = append(c.order, m)
	c.happened(m)
}

func (c *cluster) happened(m *member) { c.events = append(c.events, event{*m, c.now}) }

func (c *cluster) watch() {
	if len(c.events) == 0 {
		return
	}
	m := c.events[0]
	c.events = c.events[1:]
	r := recreate.Replacement{UID: m.uid, Controller: m.controller, Back: m.current && m.ready && !m.ends && !m.gone}
	switch {
	case m.gone:
		c.ledger.Gone(m.uid, c.now)
	case !c.known[m.uid]:
		c.ledger.Added(r, c.now)
	default:
		c.ledger.Changed(r)
	}
	c.known[m.uid] = true
	if m.gone || m.ends {
		delete(c.matched, m.uid)
		c.queue.Remove(m.uid)
		return
	}
	c.matched[m.uid] = true
	p := rollout.Pod{UID: m.uid, Namespace: podstate.MakeNamespace("default"), Name: string(m.uid), Ready: m.ready}
	if !m.current {
		p.Way, p.Evictable, p.Reason = inplace.Recreate, true, inplace.ImmutableFieldChanged
	}
	c.queue.Set(p)
}

// change makes another process the leader, which knows what it can list.
func (c *cluster) change() {
	stopped := c.ledger.Stopped() // which is in the status
	c.lead()
	c.ledger = recreate.Ledger{}
	if stopped {
		c.ledger.Stop()
	}
	c.leads, c.adopts = c.now, true
	c.events, c.writes = nil, nil
	clear(c.known)
	clear(c.matched)
	for _, m := range c.order {
		if !m.gone {
			c.happened(m)
		}
	}
	for len(c.events) > 0 {
		c.watch()
	}
}

// adopt is what a leader does when it has led for long enough.
func (c *cluster) adopt() {
	for _, m := range c.order {
		switch {
		case !c.known[m.uid] || m.gone:
		case m.ends:
			c.ledger.AdoptVictim(m.uid, m.controller)
		}
	}
	for _, m := range c.order {
		if c.matched[m.uid] && m.current && !m.ready && !m.gone && !m.ends {
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
	for _, take := range c.queue.Next(1+c.IntN(10), 0) {
		c.writes = append(c.writes, &request{take: take})
	}
}

func (c *cluster) write() {
	if len(c.writes) == 0 {
		return
	}
	i := c.IntN(len(c.writes))
	w := c.writes[i]
	m := c.pods[w.take.UID]
	if !w.sent {
		w.sent = true
		c.ledger.Begin(m.uid, m.controller)
		if c.IntN(5) == 0 { // a PodDisruptionBudget
			c.ledger.Cancel(m.uid)
			c.queue.Retry(w.take)
			c.writes = append(c.writes[:i], c.writes[i+1:]...)
			return
		}
		if m.current || m.ends {
			c.Errorf("%+v is evicted", *m)
		}
		c.evicted++
		m.ends = true
		c.happened(m)
		c.check()
		return
	}
	c.ledger.Accepted(m.uid, c.now)
	c.queue.Hold(w.take, "Evicted", "")
	c.writes = append(c.writes[:i], c.writes[i+1:]...)
}

func (c *cluster) check() {
	all, ready := 0, 0
	for _, m := range c.order {
		if !m.gone {
			all++
		}
		if m.ready && !m.ends && !m.gone {
			ready++
		}
	}
	if c.bad && c.evicted > 3 {
		c.Errorf("%d Pods are evicted for a content that does not start", c.evicted)
	}
	// Each Pod that ends has been replaced by another, or not yet.
	wanted := 0
	for _, m := range c.order {
		if !m.current {
			wanted++
		}
	}
	if wanted-ready > c.limit {
		c.Errorf("%d of %d Pods are away, maxUnavailable is %d", wanted-ready, wanted, c.limit)
	}
}

// workloads let Pods end, make new ones, and let them become ready.
func (c *cluster) workloads() {
	for _, m := range c.order {
		switch {
		case c.IntN(4) > 0 || m.gone:
			continue
		case m.ends:
			m.gone, m.ready = true, false
			c.happened(m)
			c.create(m.controller, true, false)
			return
		case m.current && !m.ready && !c.bad:
			m.ready = true
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
	if c.IntN(500) == 0 {
		c.change()
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
		if !c.bad && !m.gone && !m.current {
			c.Errorf("%+v is never replaced", *m)
			return
		}
	}
}
