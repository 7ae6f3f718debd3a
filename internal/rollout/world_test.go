package rollout_test

import (
	"fmt"
	"math/rand"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// This file is a simulated cluster. Its kubelets, apps, nodes and people act once a second, and
// Decide leads the rollout. simulation_test.go and fuzz_test.go run it.

// content is a content of the SidecarSet: what its image does.
type content struct {
	kind                  int
	delay, jitter, period int     // seconds
	duty                  float64 // the part of a period in which a flapping Pod is Ready
	share                 float64 // of the apps that the image hurts; 0: all
	pullErr               int     // seconds until a failed pull shows on a new Pod
	pull                  int     // seconds that a pull takes
}

const (
	good      = iota
	noStart   // the sidecar does not start
	breaksApp // the Pod is not Ready from delay seconds after the start on
	flaps     // the Pod is not Ready in the second part of each period
	crashes   // the sidecar ends delay seconds after each start; it is started again with back-off
)

// The states of the sidecar of a Pod.
const (
	running = iota
	restarting
	failed
	backoff
)

// simPod is one Pod. Times are in seconds, and containers are numbered.
type simPod struct {
	id, app, node int
	gone, term    bool // it does not exist any more; it is being deleted
	rev, gen      int  // the content of its spec, and the generation
	// The record of the operator's last write. old is the container at that time.
	has            bool
	was            podstate.StateBefore
	old, rgen, wrt int
	// What the kubelet does.
	run, cid, st, until, startAt, target, restarts int
	first                                          int  // first start of this content
	quiet                                          bool // this restart does not show in the condition Ready
	ignores, stuck                                 bool // a silent node; one that acknowledges and never acts
	restarted, idle                                bool
	deadAt                                         int // when its node died
	// The app's own outages. A chronic one is Ready for upFor seconds, and then not for downFor.
	ownBad, ownNoStart      bool
	ownNext, upFor, downFor int
	appFrom                 int // when a new Pod's app is ready
	hitJ                    int
	vcid, vrev, vobs        int // what the status shows
	up, ready               bool
	since                   int
	took                    bool // the operator took it down: it was serving
	unassigned              bool // no node has it
	record                  podstate.Record
	out                     rollout.Pod
}

// world is a cluster with one SidecarSet, and its leader.
type world struct {
	rng      *rand.Rand
	now      int
	pods     []*simPod
	born     []*simPod // by id
	contents []content
	want     int
	// The update strategy. Below 1, mu and part are percentages.
	mu, part float64
	paused   bool
	minReady int

	bgShare, bgDown float64
	appHit          []float64
	appSize         []int
	restLo, restHi  int
	skew            []int       // of the clocks of the nodes
	dead            map[int]int // nodes, and after how many seconds they come back; 0: never
	daemons         int         // apps below this number are DaemonSets
	// The leader.
	status, saved         rollout.Status
	saveAt, next, ledFrom int
	event                 bool
	plan                  rollout.Plan
	view                  []*rollout.Pod
	restless              bool // the leader changes before each decision
	leaderEvery           int
	lag                   int  // least seconds between two decisions
	echo                  int  // seconds until the leader sees its own write
	vague                 bool // some nodes report images by other names
	defaultOrder          bool // the order of Pods is not that of their ids
	mistake               mistake
	strategies            map[string]*rollout.Strategy
	// Measures: Pods that are down because of a write, those of them that served, and Pods that got a
	// bad image while they served, and while they were down.
	peakDown, peakOurs   int
	peakAppDown          float64
	victims, downVictims map[int]bool
	lastWrite            int
	ad                   []int
}

// mistake is a planted mistake.
type mistake struct {
	view     func(*world) // edits what Decide is given
	plan     func(*world) // edits what it answers
	write    func(podstate.StateBefore) podstate.StateBefore
	leader   func(*rollout.Status) // edits what a new leader reads
	rounding bool                  // percentages are rounded down
	noLoss   bool                  // Pods that disappear are not counted
	noWait   bool                  // the leader does not wait for the status
}

// epoch is when worlds begin.
const epoch = 14_400_000

func newWorld(seed int64, n, apps int, mu float64) *world {
	w := &world{rng: rand.New(rand.NewSource(seed)), now: epoch, mu: mu, minReady: 30, contents: []content{{}}, restLo: 2, restHi: 5,
		status: rollout.Begun, saved: rollout.Begun, victims: map[int]bool{}, downVictims: map[int]bool{}, dead: map[int]int{},
		skew: make([]int, 100), appHit: make([]float64, apps), appSize: make([]int, apps), ad: make([]int, apps), strategies: map[string]*rollout.Strategy{}}
	for i := range w.appHit {
		w.appHit[i] = w.rng.Float64()
	}
	for i := range n {
		w.add(i%apps, true)
	}
	return w
}

const placeLabel = "place"

var byPlace = compile(0, 0, false, 0, false)

func compile(mu, part float64, paused bool, minReady int, defaultOrder bool) *rollout.Strategy {
	amount := func(x float64) *intstr.IntOrString {
		v := intstr.FromInt(int(x))
		if x > 0 && x < 1 {
			v = intstr.FromString(fmt.Sprintf("%.0f%%", x*100))
		}
		return &v
	}
	u := update{MaxUnavailable: amount(mu), Partition: amount(part), Paused: paused}
	if !defaultOrder {
		u.PriorityStrategy = byOrder(placeLabel)
	}
	return withMinReady(u, strconv.Itoa(minReady))
}

func (w *world) strategy() *rollout.Strategy {
	mu := w.mu
	if w.mistake.rounding && mu < 1 {
		mu = float64(int(mu * float64(len(w.pods))))
	}
	key := fmt.Sprint(mu, w.part, w.paused, w.minReady)
	if w.strategies[key] == nil {
		w.strategies[key] = compile(mu, w.part, w.paused, w.minReady, w.defaultOrder)
	}
	return w.strategies[key]
}

func (w *world) hit(p *simPod, rev int) bool {
	c := w.contents[rev]
	return c.share == 0 || w.appHit[p.app] <= c.share
}

func (w *world) add(app int, old bool) *simPod {
	p := &simPod{id: len(w.born), app: app, rev: w.want, gen: 1, run: w.want, cid: 1, startAt: w.now - 1e6, ownNext: -1, hitJ: w.rng.Intn(1 << 20), node: w.rng.Intn(100)}
	p.first, p.vrev, p.vobs = p.startAt, w.want, 1
	w.appSize[app]++
	w.event = true
	if old {
		p.vcid, p.up, p.ready, p.since = 1, true, true, w.now-1e6
	} else {
		p.st, p.target, p.since = restarting, w.want, w.now
		p.until = w.now + 3 + w.rng.Intn(6)
		if c := w.contents[w.want]; c.kind == noStart {
			p.until = w.now + max(3, c.pullErr)
		}
		p.appFrom = w.now + 8 + w.rng.Intn(20)
	}
	p.record = podstate.Record{UID: types.UID(fmt.Sprintf("%09d", p.id)), Namespace: podstate.MakeNamespace("default"), Name: strconv.Itoa(p.id), Controller: podstate.MakeName(fmt.Sprint("app-", app)), Active: true,
		Order: podstate.Order{Assigned: true, Phase: podstate.Running, Created: int64(w.now)}}
	p.out.Record, p.out.Sidecar = &p.record, "proxy"
	p.out.Traits = byPlace.TraitsOf(labels.Set{placeLabel: strconv.Itoa(1<<30 - p.id)})
	w.pods, w.born = append(w.pods, p), append(w.born, p)
	return p
}

// background lets a share of the Pods be down at any time for reasons of their own.
func (w *world) background(share, down float64) {
	w.bgShare, w.bgDown = share, down
	if share == 0 {
		return
	}
	for _, p := range w.pods {
		p.ownBad = w.rng.Float64() < share
		p.ownNext = w.now + w.draw(p.ownBad)
		p.ready = !p.ownBad
		if p.ownBad {
			p.since = w.now
		}
	}
}

func (w *world) draw(bad bool) int {
	m := w.bgDown
	if !bad {
		m = w.bgDown * (1 - w.bgShare) / w.bgShare
	}
	return 1 + int(w.rng.ExpFloat64()*m)
}

// chronic makes a Pod crash for ever: Ready for up seconds (0: never), then not Ready for down.
func (w *world) chronic(p *simPod, up, down int) {
	p.upFor, p.downFor, p.ownNext, p.idle = up, down, -1, false
	p.ownBad = up == 0 || w.rng.Intn(up+down) >= up
	if up > 0 {
		p.ownNext = w.now + 1 + w.rng.Intn(up+down)
	}
	w.setReady(p, !p.ownBad && p.ready)
	p.since = w.now
	if up == 0 {
		p.since -= 1e5
	}
}

// ---------- kubelets ----------

func (w *world) broken(p *simPod, rev int) bool {
	c := w.contents[rev]
	if c.kind != breaksApp && c.kind != flaps || !w.hit(p, rev) {
		return false
	}
	d, age := c.delay, w.now-p.startAt
	if c.jitter > 0 {
		d += p.hitJ % c.jitter
	}
	if age < d {
		return false
	}
	return c.kind == breaksApp || float64((age+p.hitJ)%c.period) >= c.duty*float64(c.period)
}

func (w *world) kubelet(p *simPod) {
	if p.ownNext >= 0 && w.now >= p.ownNext {
		p.ownBad = !p.ownBad
		switch {
		case p.downFor > 0 && p.ownBad:
			p.ownNext = w.now + p.downFor
		case p.downFor > 0:
			p.ownNext = w.now + p.upFor
		default:
			p.ownNext = w.now + w.draw(p.ownBad)
		}
		p.idle = false
	}
	switch {
	case p.deadAt > 0:
		w.deadNode(p)
		return
	case p.unassigned:
		return
	case p.ignores:
		if p.ownBad == p.ready { // the probes still work
			w.setReady(p, !p.ownBad)
		}
		return
	case p.idle && p.rev == p.run:
		return
	}
	p.idle = false
	if p.stuck && p.st == running && p.rev != p.run {
		w.publish(p)
		return
	}
	if p.st == restarting && w.now >= p.until {
		p.run, p.cid, p.startAt, p.first = p.target, p.cid+1, w.now, w.now
		p.st, p.restarts = running, 0
		if c := w.contents[p.run]; c.kind == noStart && w.hit(p, p.run) || p.ownNoStart {
			p.st = failed
		}
		p.vcid, p.vrev, p.up = p.cid, p.run, p.st == running
		w.event = true
		if p.rev != p.target { // the new generation is shown with the running container, which is then stopped
			w.publish(p)
			w.begin(p)
			return
		}
	}
	if c := w.contents[p.run]; c.kind == crashes && w.hit(p, p.run) && p.rev == p.run {
		switch {
		case p.st == running && w.now >= p.startAt+c.delay+p.hitJ%max(1, c.jitter):
			p.st, p.until = backoff, w.now+min(300, 10<<min(p.restarts, 5))
			w.event = true
		case p.st == backoff && w.now >= p.until:
			p.st, p.startAt, p.cid, p.restarts = running, w.now, p.cid+1, p.restarts+1
			w.event = true
		}
	}
	switch {
	case p.st != restarting && p.rev != p.run:
		w.publish(p)
		w.begin(p)
	case p.st != restarting:
		w.publish(p)
		p.idle = w.now >= p.appFrom && w.contents[p.run].kind <= noStart
	case !p.quiet, p.ownBad:
		w.setReady(p, false)
	}
}

// begin stops the sidecar, and starts it with the content of the spec.
func (w *world) begin(p *simPod) {
	w.event = true
	p.st, p.target, p.restarted = restarting, p.rev, true
	p.until = w.now + w.restLo + w.rng.Intn(w.restHi-w.restLo+1) + w.contents[p.rev].pull
	p.quiet = w.rng.Intn(2) == 0
}

func (w *world) publish(p *simPod) {
	up := p.st == running
	w.event = w.event || up != p.up
	p.vcid, p.vrev, p.up, p.vobs = p.cid, p.run, up, p.gen
	w.setReady(p, up && !p.ownBad && w.now >= p.appFrom && !w.broken(p, p.run))
}

func (w *world) setReady(p *simPod, ready bool) {
	if p.ready != ready {
		p.ready, p.since, w.event = ready, w.now, true
	}
}

// killNode lets a node die.
func (w *world) killNode(node, back int) {
	w.dead[node] = back
	for _, p := range w.pods {
		if p.node == node && !p.gone && p.deadAt == 0 {
			p.deadAt, p.took = w.now, false
		}
	}
}

func (w *world) deadNode(p *simPod) {
	age := w.now - p.deadAt
	if age == 40 {
		w.setReady(p, false)
	}
	if age == 340 && p.app >= w.daemons && !p.term {
		w.leave(p, false)
		p.term, w.event = true, true
		w.appSize[p.app]--
		q, dead := w.add(p.app, false), true
		for dead {
			q.node = w.rng.Intn(100)
			_, dead = w.dead[q.node]
		}
	}
	if back := w.dead[p.node]; back > 0 && age >= back {
		p.deadAt, p.idle, w.event = 0, false, true
		p.gone = p.term
	}
}

// ---------- the leader ----------
