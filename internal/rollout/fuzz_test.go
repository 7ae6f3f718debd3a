package rollout_test

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/sidecarset/operator/internal/podstate"
)

var (
	seedsFlag = flag.Int64("rollout.seeds", 0, "how many random clusters are simulated; 0: some hundreds, and 60 with -short")
	baseFlag  = flag.Int64("rollout.base", 0, "the seed before the first one")
)

// found is what random clusters showed.
type found struct {
	sync.Mutex
	violations []string
	served     []int // bad images by how many Pods they took that served, if no victim disappeared
	repairs    []int // seconds until what earlier images broke was repaired
	ends       []int // seconds until the last rollout was over
	down       []int // Pods that a bad image reached and that were down before
}

// breach notes a violation of what holds in every cluster.
func (f *found) breach(seed int64, format string, args ...any) {
	f.violations = append(f.violations, fmt.Sprintf("seed %d: ", seed)+fmt.Sprintf(format, args...))
}

// slowRepair is the time in seconds within which nearly all broken Pods are repaired.
const slowRepair = 240

// wrong returns the violations, and what happened too often that may happen a few times.
func (f *found) wrong() []string {
	all := f.violations
	for _, few := range []struct {
		what  string
		in    []int
		above int
		share float64
	}{
		{"victims", f.served, 2, .015},
		{"victims", f.served, 4, .001},
		{"victims", f.served, 11, 0},
		{"seconds of repair", f.repairs, slowRepair, .01},
	} {
		n := 0
		for _, x := range few.in {
			if x > few.above {
				n++
			}
		}
		if most := int(2*min(1, 1000*few.share) + few.share*float64(len(few.in))); n > most {
			all = append(all, fmt.Sprintf("%d of %d have more than %d %s, want at most %d", n, len(few.in), few.above, few.what, most))
		}
	}
	return all
}

func (f *found) check(t *testing.T) {
	t.Helper()
	for i, wrong := range f.wrong() {
		if i == 10 {
			t.Error("and more")
			break
		}
		t.Error(wrong)
	}
	t.Logf("victims %s, and down before %s; repair %s; end %s", quantiles(f.served), quantiles(f.down), quantiles(f.repairs), quantiles(f.ends))
	var by [12]int
	for _, n := range f.served {
		by[min(n, 11)]++
	}
	t.Logf("bad images by victims: %d; repairs over %d s: %d", by, slowRepair, len(f.repairs)-len(slices.DeleteFunc(f.repairs, func(s int) bool { return s > slowRepair })))
}

func quantiles(x []int) string {
	if len(x) == 0 {
		return "none"
	}
	slices.Sort(x)
	q := func(f float64) int { return x[min(len(x)-1, int(f*float64(len(x))))] }
	return fmt.Sprintf("%d/%d/%d/%d", q(.5), q(.95), q(.99), q(1))
}

func pick[T any](w *world, x ...T) T { return x[w.rng.Intn(len(x))] }

func (w *world) badContent() content {
	switch w.rng.Intn(4) {
	case 0:
		return content{kind: noStart, pullErr: 1 + w.rng.Intn(60)}
	case 1:
		return content{kind: breaksApp, delay: w.rng.Intn(58)}
	case 2:
		return content{kind: crashes, delay: 1 + w.rng.Intn(50)}
	}
	return content{kind: flaps, delay: w.rng.Intn(30), period: 20 + w.rng.Intn(50), duty: .1 + .4*w.rng.Float64()}
}

// fuzzed is a random cluster in which things happen.
type fuzzed struct {
	*world
	n, churn, deleter, bornBad int
	vanished                   int // Pods with the wanted content that disappeared
}

// newFuzzed returns a cluster with outages of its own, silent nodes, wrong clocks and leaders that
// change. Those of odd seeds are less like the model: their leader sees its writes late, some nodes
// report images by other names, and Pods have the default order.
func newFuzzed(seed int64, m mistake) *fuzzed {
	n := 3 + int(seed%60)
	if seed%10 == 0 {
		n = 300
	}
	w := newWorld(seed, n, 1+int(seed%7), 1)
	w.mistake = m
	if seed%2 == 1 {
		w.defaultOrder, w.vague, w.echo = true, seed%4 == 1, 2
	}
	w.mu = pick(w, 1, 1, 1, 2, 3, .05, .1, .25, .5)
	w.restHi = pick(w, 5, 5, 20)
	w.daemons = w.rng.Intn(len(w.appHit) + 1)
	if share := pick(w, 0, 0, .01, .03); share > 0 {
		w.background(share, pick(w, 60., 600, 3600))
	}
	if w.rng.Intn(2) == 0 {
		for range 1 + w.rng.Intn(1+n/100) {
			p := w.pods[w.rng.Intn(n)]
			if w.rng.Intn(2) == 0 {
				p = w.pods[0] // the first in the order
			}
			up := pick(w, 0, 20, 60, 300)
			w.chronic(p, up, 300)
			p.ownNoStart = up == 0 && w.rng.Intn(2) == 0
		}
	}
	if w.rng.Intn(4) == 0 {
		for i := 0; i < 1+w.rng.Intn(2); i++ { //nolint:intrange // the bound is drawn anew each time
			p := w.pods[w.rng.Intn(min(n, 5))]
			p.ignores = w.rng.Intn(2) == 0
			p.stuck = !p.ignores
		}
	}
	if w.rng.Intn(4) == 0 {
		for i := range w.skew {
			w.skew[i] = w.rng.Intn(41) - 20
		}
	}
	switch w.rng.Intn(5) {
	case 0:
		w.leaderEvery = 60
	case 1:
		w.leaderEvery = 3600
	case 2:
		w.restless = true
	}
	w.lag = pick(w, 0, 0, 0, 5)
	f := &fuzzed{world: w, n: n, bornBad: -1}
	if w.rng.Intn(4) == 0 {
		f.bornBad = w.rng.Intn(len(w.appHit))
	}
	f.churn, f.deleter = pick(w, 0, 0, 300, 60), pick(w, 0, 0, 0, 0, 0, 60)
	return f
}

func (f *fuzzed) isWritten(p *simPod) bool {
	return p.has && p.was != podstate.WasNotReady && p.rev == f.want
}

// happen lets people, controllers and nodes act for a second.
func (f *fuzzed) happen() {
	w, from := f.world, len(f.pods)
	lose := func(p *simPod) {
		if f.isWritten(p) {
			f.vanished++
		}
	}
	if from == 0 {
		return
	}
	if f.churn > 0 && w.rng.Intn(f.churn) == 0 {
		if p := w.pods[w.rng.Intn(len(w.pods))]; !p.gone && !p.term {
			lose(p)
			w.kill(p, w.rng.Intn(8) > 0)
		}
	}
	if f.churn > 0 && w.rng.Intn(3*f.churn) == 0 && len(w.pods) < 3*f.n {
		for i := 0; i < 1+w.rng.Intn(3); i++ { //nolint:intrange // the bound is drawn anew each time
			w.add(w.rng.Intn(len(w.appHit)), false)
		}
	}
	if f.churn > 0 && w.rng.Intn(20*f.churn) == 0 { // a node is drained
		node := w.rng.Intn(10)
		for _, p := range slices.Clone(w.pods) {
			if !p.gone && !p.term && p.node%10 == node {
				lose(p)
				w.kill(p, true)
			}
		}
	}
	if f.churn > 0 && w.rng.Intn(20*f.churn) == 0 && len(w.dead) < 5 {
		p := w.pods[w.rng.Intn(len(w.pods))]
		for _, q := range w.pods { // rather a node with a Pod that is updated
			if q.st == restarting && q.has && !q.gone {
				p = q
			}
		}
		if p.deadAt == 0 {
			for _, q := range w.pods {
				if q.node == p.node {
					lose(q)
				}
			}
			w.killNode(p.node, pick(w, 0, 200, 2000))
		}
	}
	if f.deleter > 0 && w.now%f.deleter == 0 && w.deleteVictim() {
		f.vanished++
	}
	for _, p := range w.pods[min(from, len(w.pods)):] {
		if p.app == f.bornBad {
			w.chronic(p, 0, 1)
		}
	}
}

// simulate lets up to four edits happen in a random cluster, and then a good one.
func simulate(seed int64, m mistake, to *found) {
	f := newFuzzed(seed, m)
	w := f.world
	w.pass(100, nil)
	budget := 0
	note := func() { budget = max(budget, w.plan.Budget) }
	note()
	clean := true // there were only good images
	edits := 1 + w.rng.Intn(4)
	for range edits {
		c := content{}
		if w.rng.Intn(3) > 0 {
			c, clean = w.badContent(), false
		}
		c.pull = pick(w, 0, 0, 0, 40)
		w.contents = append(w.contents, c)
		w.victims, w.downVictims, f.vanished = map[int]bool{}, map[int]bool{}, 0
		w.edit(len(w.contents) - 1)
		length := pick(w, 20+w.rng.Intn(100), 300+w.rng.Intn(600), 1000+w.rng.Intn(3000))
		w.part = pick(w, 0, 0, 0, .5, .9)
		w.paused = w.rng.Intn(10) == 0
		for end := w.now + length; w.now < end; {
			w.step(f.happen)
			note()
			if w.paused && w.rng.Intn(200) == 0 {
				w.paused = false
			}
		}
		served, down := len(w.victims), len(w.downVictims)
		switch {
		case c.kind != good:
			to.down = append(to.down, down)
			if f.vanished == 0 {
				to.served = append(to.served, served)
			} else if most := 4 + 2*((length+599)/600); served > most {
				to.breach(seed, "%d victims of %+v in %d s, want at most %d", served, c, length, most)
			}
			if c.kind == noStart && f.deleter == 0 && down > 3+2*length/600+2*edits {
				to.breach(seed, "%d Pods that were down got %+v in %d s", down, c, length)
			}
		case clean && w.peakOurs > budget:
			to.breach(seed, "%d Pods are down at maxUnavailable %d", w.peakOurs, budget)
			clean = false
		}
	}
	// The last edit is good, or a rollback to a good content.
	last := 0
	if w.rng.Intn(4) > 0 || w.want == 0 || clean {
		w.contents = append(w.contents, content{})
		last = len(w.contents) - 1
	}
	w.paused = false
	w.edit(last)
	begin, heard, repair := w.now, w.now, -1
	for w.now < begin+86400 && (repair < 0 || w.outdated() > 0) {
		w.step(func() {
			if w.now < begin+14400 {
				f.happen()
			}
		})
		if repair < 0 && (w.count(f.waitsForRepair) == 0 || w.now > begin+7200) {
			repair = w.now - begin
			w.part = 0
		}
		if w.now-max(w.lastWrite, heard) > 900 && w.outdated() > 0 && repair >= 0 {
			heard = w.now
			if lie := w.lie(); lie != "" {
				to.breach(seed, "%s", lie)
			}
		}
	}
	to.repairs, to.ends = append(to.repairs, repair), append(to.ends, w.now-begin)
	if n := w.outdated(); n > 0 {
		to.breach(seed, "%d of %d Pods are outdated after a day, by rule %d: %+v", n, len(w.pods), w.plan.Rule, w.plan.Numbers)
	}
}

// waitsForRepair: an earlier image broke the Pod, and nothing else keeps it from being repaired.
func (f *fuzzed) waitsForRepair(p *simPod) bool {
	kind := f.contents[p.rev].kind
	return p.took && p.rev != f.want && !p.ownBad && !p.ignores && !p.stuck && (f.part == 0 || kind == noStart || kind == breaksApp) && f.isHurt(p)
}

// Random clusters. In every one, the last, good edit reaches all Pods within a day; what waits for
// more than fifteen minutes waits by a rule and for a Pod that do hold it up; a good image never
// has more Pods down than maxUnavailable. A bad image takes two Pods, in 1.1 % of the cases more,
// and what it broke is repaired within minutes.
func TestRandomClusters(t *testing.T) {
	seeds := *seedsFlag
	if seeds == 0 {
		seeds = 400
		if testing.Short() {
			seeds = 60
		}
	}
	var all found
	t.Run("seeds", func(t *testing.T) {
		const chunk = 20
		for from := *baseFlag; from < *baseFlag+seeds; from += chunk {
			t.Run(fmt.Sprint(from+1), func(t *testing.T) {
				t.Parallel()
				var f found
				for seed := from + 1; seed <= min(from+chunk, *baseFlag+seeds); seed++ {
					simulate(seed, mistake{}, &f)
				}
				all.Lock()
				defer all.Unlock()
				all.violations = append(all.violations, f.violations...)
				all.served, all.down = append(all.served, f.served...), append(all.down, f.down...)
				all.repairs, all.ends = append(all.repairs, f.repairs...), append(all.ends, f.ends...)
			})
		}
	})
	all.check(t)
}
