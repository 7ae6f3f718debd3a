package rollout_test

import (
	"fmt"
	"math/rand"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sidecarset/operator/internal/inplace"
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
	was            podstate.Was
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
	write    func(podstate.Was) podstate.Was
	leader   func(*rollout.Status) // edits what a new leader reads
	rounding bool                  // percentages are rounded down
	noLoss   bool                  // Pods that disappear are not counted
	noWait   bool                  // nobody waits for the status
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
		w.leave(p)
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

// seen reports whether the status shows that the write was carried out.
func (p *simPod) seen() bool {
	return p.vobs >= p.rgen && p.vcid != p.old && p.vrev == p.rev && p.st != failed
}

// look returns the Pod as the leader sees it.
func (w *world) look(p *simPod) *rollout.Pod {
	r, out := &p.record, &p.out
	if p.has && w.now < p.wrt+w.echo && p.wrt >= w.ledFrom { // the event has not come
		out.Sent = &podstate.Written{At: uint32(p.wrt), Was: p.was}
		return out
	}
	r.Ready, r.Since = p.ready, uint32(p.since+w.skew[p.node])
	out.Sent, out.Written, out.Trouble = nil, podstate.Written{}, 0
	out.Dead = p.deadAt > 0 && !p.ready && w.now-p.deadAt >= 40
	out.Carries, out.Verdict.Way = p.rev == w.want, inplace.Images
	if out.Carries {
		out.Verdict.Way = inplace.Current
	}
	switch p.st {
	case failed:
		out.Trouble = trouble("ErrImagePull")
	case backoff:
		out.Trouble = trouble("CrashLoopBackOff")
	}
	if w.defaultOrder {
		out.Traits = nil
	}
	if p.has {
		out.Written = podstate.Written{At: uint32(p.wrt), Started: uint32(p.wrt), Was: p.was, Up: p.up && p.vrev == p.rev}
		if p.seen() {
			out.Written.Carried = out.Written.At
			if w.vague && p.node%10 == 0 {
				out.Written.Carried += 40
			}
			if p.restarts == 0 {
				out.Written.Started = uint32(max(p.wrt, p.first+w.skew[p.node]))
			}
		}
	}
	return out
}

// trouble returns the trouble with the kubelet's word.
func trouble(word string) podstate.Trouble {
	for t := range podstate.Troubles {
		if t.String() == word {
			return t
		}
	}
	panic(word)
}

func (w *world) decide() {
	if w.restless {
		w.newLeader()
	}
	w.view = w.view[:0]
	for _, p := range w.pods {
		if !p.gone && !p.term {
			w.view = append(w.view, w.look(p))
		}
	}
	if w.mistake.view != nil {
		w.mistake.view(w)
	}
	w.plan = rollout.Decide(w.strategy(), w.status, w.status == w.saved || w.mistake.noWait, w.view, int64(w.now))
	if w.mistake.plan != nil {
		w.mistake.plan(w)
	}
	w.setStatus(w.plan.Status)
	w.next = int(w.plan.Next)
	for _, p := range w.plan.Write {
		w.write(w.of(p), p.Was(int64(w.now)))
	}
	if len(w.plan.Write) > 0 {
		w.next = w.now + 1
	}
}

func (w *world) of(p *rollout.Pod) *simPod {
	id, _ := strconv.Atoi(p.Record.Name)
	return w.born[id]
}

// setStatus sets the status. It is stored two seconds later.
func (w *world) setStatus(s rollout.Status) {
	w.status = s
	if w.saveAt == 0 && s != w.saved {
		w.saveAt = w.now + 2
	}
}

func (w *world) newLeader() {
	w.event, w.ledFrom = true, w.now
	if w.restless {
		return
	}
	if w.mistake.leader != nil {
		w.mistake.leader(&w.saved)
	}
	w.status, w.saveAt = w.saved, 0
}

// leave is called when a Pod disappears, or begins to.
func (w *world) leave(p *simPod) {
	if !p.term && w.look(p).IsCharged(w.strategy(), int64(w.now)) && !w.mistake.noLoss {
		w.setStatus(w.status.Lose(int64(w.now)))
	}
}

func (w *world) edit(rev int) {
	w.event, w.want = true, rev
	w.status, w.saved, w.saveAt = rollout.Begun, rollout.Begun, 0
}

func (w *world) write(p *simPod, was podstate.Was) {
	if w.mistake.write != nil {
		was = w.mistake.write(was)
	}
	broken := p.st == running && w.broken(p, p.run)
	serving := (p.st == running || p.st == restarting && p.took) && !p.ownBad && w.now >= p.appFrom && p.deadAt == 0 && !broken
	p.took = serving && p.ready || p.took && (p.st != running || broken)
	p.has, p.was, p.old, p.wrt, p.rev = true, was, p.vcid, w.now, w.want
	p.gen++
	p.rgen = p.gen
	w.lastWrite = w.now
	if c := w.contents[w.want]; c.kind != good && w.hit(p, w.want) {
		if serving {
			w.victims[p.id] = true
		} else if !p.took {
			w.downVictims[p.id] = true
		}
	}
}

func (w *world) kill(p *simPod, replace bool) {
	w.leave(p)
	p.gone, w.event = true, true
	if !p.term {
		w.appSize[p.app]--
	}
	if replace {
		w.add(p.app, false)
	}
}

// ---------- time and measures ----------

func (w *world) step(each func()) {
	w.now++
	if w.leaderEvery > 0 && w.now%w.leaderEvery == 0 {
		w.newLeader()
	}
	for i := 0; i < len(w.pods); i++ {
		if p := w.pods[i]; !p.gone {
			w.kubelet(p)
		}
	}
	if each != nil {
		each()
	}
	if w.saveAt > 0 && w.now >= w.saveAt {
		w.saved, w.saveAt, w.event = w.status, 0, true
	}
	w.event = w.event || w.echo > 0 && w.now == w.lastWrite+w.echo
	if (w.event || w.next > 0 && w.now >= w.next) && (w.lag == 0 || w.now%w.lag == 0) {
		w.event = false
		w.decide()
	}
	if w.now%64 == 0 {
		kept := w.pods[:0]
		for _, p := range w.pods {
			if !p.gone {
				kept = append(kept, p)
			}
		}
		w.pods = kept
	}
	w.measure()
}

func (w *world) measure() {
	down, ours := 0, 0
	clear(w.ad)
	for _, p := range w.pods {
		if p.gone || p.term || !p.has || p.ownBad || w.now < p.appFrom || p.deadAt > 0 {
			continue
		}
		if p.st == restarting && p.restarted || p.st == failed || p.st == backoff || w.broken(p, p.run) {
			down++
			w.ad[p.app]++
			if p.took {
				ours++
			}
		}
	}
	w.peakDown, w.peakOurs = max(w.peakDown, down), max(w.peakOurs, ours)
	for a, d := range w.ad {
		if d > 0 && w.appSize[a] > 1 {
			w.peakAppDown = max(w.peakAppDown, float64(d)/float64(w.appSize[a]))
		}
	}
}

func (w *world) count(is func(*simPod) bool) (n int) {
	for _, p := range w.pods {
		if !p.gone && !p.term && p.deadAt == 0 && is(p) {
			n++
		}
	}
	return n
}

func (w *world) outdated() int {
	return w.count(func(p *simPod) bool { return p.rev != w.want })
}

// isHurt reports whether a Pod is down because of its content.
func (w *world) isHurt(p *simPod) bool {
	return !p.ownNoStart && (p.st == failed || p.st == backoff || w.broken(p, p.run))
}

func (w *world) hurt() int { return w.count(w.isHurt) }

// lie returns what is wrong with the reason that the plan gives; "" if nothing is.
func (w *world) lie() string {
	who := w.plan.Who
	w.event = true
	switch rule := w.plan.Rule; {
	case rule == rollout.NoRule:
		return "no reason is given"
	case rule == rollout.Paused, rule == rollout.Partition, who == nil && w.status.Disappeared > 0:
		return ""
	case who == nil:
		return fmt.Sprintf("rule %d names no Pod", rule)
	case (rule == rollout.Budget || rule == rollout.Proof || rule == rollout.Share) && (who.Written.At == 0 || who.Written.Was == podstate.WasDown):
		return fmt.Sprintf("Pod %s does not hold up others by rule %d", who.Record.Name, rule)
	case rule == rollout.JustReady:
		return ""
	}
	p := w.of(who)
	switch {
	case p.gone, p.term:
		return fmt.Sprintf("Pod %d does not exist", p.id)
	case p.ready && p.seen() && p.run == p.rev && p.since+w.skew[p.node] < w.now-900 && p.first < w.now-900:
		return fmt.Sprintf("Pod %d is well", p.id)
	}
	return ""
}

func checked(t *testing.T, got, most []int) {
	t.Helper()
	for i := range most {
		if got[i] > most[i] {
			t.Errorf("got %d, want at most %d", got, most)
			return
		}
	}
	t.Logf("%d of %d", got, most)
}
