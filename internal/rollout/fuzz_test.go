package rollout_test

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/test/rounds"
)

// found is what random clusters showed.
type found struct {
	sync.Mutex
	violations []string
	served     []int // bad images by how many Pods they took that served, if no victim disappeared
	repairs    []int // seconds until what earlier images broke was repaired
	ends       []int // seconds until the last rollout was over
	down       []int // Pods that a bad image reached and that were down before
	lost       []int // images that evict Pods or kill nodes, by how many Pods got them
	late       []int64
}

func (f *found) add(g *found) {
	f.Lock()
	defer f.Unlock()
	f.violations, f.served, f.down = append(f.violations, g.violations...), append(f.served, g.served...), append(f.down, g.down...)
	f.repairs, f.ends, f.lost, f.late = append(f.repairs, g.repairs...), append(f.ends, g.ends...), append(f.lost, g.lost...), append(f.late, g.late...)
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
	// The model with which the rules were chosen breaks a promise in 2.2 % of its clusters. Here it was 0.5 %, 25 of
	// 5,000. Of these, 17 have an image that kills nodes 55 s after its start: its Pods are available after 30 s, so
	// more are updated meanwhile. Three have one Pod more down than maxUnavailable: before two of them led a replica
	// whose clock was four hours ahead, so that its Pods count as timed out, and in one the Pod more is a repair.
	if few := len(f.violations) <= 2+len(f.ends)/100; few && *seedsFlag > 0 {
		for _, violation := range f.violations {
			t.Log(violation)
		}
		f.violations = nil
	}
	for i, wrong := range f.wrong() {
		if i == 10 {
			t.Error("and more")
			break
		}
		t.Error(wrong)
	}
	t.Logf("victims %s, and down before %s; repair %s; end %s; evicted or with nodes that died %s; late %d", quantiles(f.served), quantiles(f.down), quantiles(f.repairs), quantiles(f.ends), quantiles(f.lost), f.late)
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

func pick[T any](c *cluster.Cluster, x ...T) T { return x[c.Rand.Intn(len(x))] }

func badImage(c *cluster.Cluster) cluster.Image {
	switch c.Rand.Intn(4) {
	case 0:
		return cluster.Image{Does: cluster.NoStart, PullError: 1 + c.Rand.Intn(60)}
	case 1:
		return cluster.Image{Does: cluster.BreaksApp, Delay: c.Rand.Intn(58)}
	case 2:
		return cluster.Image{Does: cluster.Crashes, Delay: 1 + c.Rand.Intn(50)}
	}
	return cluster.Image{Does: cluster.Flaps, Delay: c.Rand.Intn(30), Period: 20 + c.Rand.Intn(50), Duty: .1 + .4*c.Rand.Float64()}
}

// fuzzed is a random cluster in which things happen.
type fuzzed struct {
	*cluster.Cluster
	wild
	n, churn, deleter, bornBad int
}

// newFuzzed returns a cluster with outages of its own, silent nodes, wrong clocks and leaders that
// change. Those of odd seeds are less like the model: their leader's watch is late, some nodes report
// images by other names, and Pods have the default order.
func newFuzzed(t testing.TB, seed int64, m cluster.Mistake) *fuzzed {
	n := 3 + int(seed%60)
	if seed%10 == 0 {
		n = 300
	}
	c := cluster.New(t, seed, n, 1+int(seed%7), 1)
	c.Mistake = m
	if seed%2 == 1 {
		c.InDefaultOrder, c.Vague, c.Late = true, seed%4 == 1, 2
	}
	c.Max = pick(c, 1, 1, 1, 2, 3, .05, .1, .25, .5)
	c.RestartHi = pick(c, 5, 5, 20)
	c.Daemons = c.Rand.Intn(len(c.AppSize) + 1)
	if share := pick(c, 0, 0, .01, .03); share > 0 {
		c.Background(share, pick(c, 60., 600, 3600))
	}
	if c.Rand.Intn(2) == 0 {
		for range 1 + c.Rand.Intn(1+n/100) {
			p := c.Pods[c.Rand.Intn(n)]
			if c.Rand.Intn(2) == 0 {
				p = c.Pods[0] // the first in the order
			}
			up := pick(c, 0, 20, 60, 300)
			c.Chronic(p, up, 300)
			p.OwnNoStart = up == 0 && c.Rand.Intn(2) == 0
		}
	}
	if c.Rand.Intn(4) == 0 {
		for i := 0; i < 1+c.Rand.Intn(2); i++ { //nolint:intrange // the bound is drawn again each time
			p := c.Pods[c.Rand.Intn(min(n, 5))]
			p.Ignores = c.Rand.Intn(2) == 0
			p.Stuck = !p.Ignores
		}
	}
	if c.Rand.Intn(4) == 0 {
		for i := range c.Skew {
			c.Skew[i] = c.Rand.Intn(41) - 20
		}
	}
	switch c.Rand.Intn(5) {
	case 0:
		c.LeaderEvery = 60
	case 1:
		c.LeaderEvery = 3600
	case 2:
		c.Restless, c.Late = true, 0 // a leader of a second would see nothing of a late watch
	}
	c.Lag = pick(c, 0, 0, 0, 5)
	f := &fuzzed{Cluster: c, n: n, bornBad: -1}
	if c.Rand.Intn(4) == 0 {
		f.bornBad = c.Rand.Intn(len(c.AppSize))
	}
	f.churn, f.deleter = pick(c, 0, 0, 300, 60), pick(c, 0, 0, 0, 0, 0, 60)
	f.newWild(seed)
	return f
}

// lose notes that a Pod with the current revision disappears.
func (f *fuzzed) lose(p *cluster.Pod) {
	if p.Written && p.Before != podstate.WasNotReady && p.Content == f.Want {
		f.Vanished++
	}
}

// happen lets people, controllers and nodes act for a second.
func (f *fuzzed) happen() {
	c, from := f.Cluster, len(f.Pods)
	if from == 0 {
		return
	}
	if f.churn > 0 && c.Rand.Intn(f.churn) == 0 {
		if p := c.Pods[c.Rand.Intn(len(c.Pods))]; !p.Gone && !p.Ending {
			f.lose(p)
			c.Kill(p, c.Rand.Intn(8) > 0)
		}
	}
	if f.churn > 0 && c.Rand.Intn(3*f.churn) == 0 && len(c.Pods) < 3*f.n {
		for i := 0; i < 1+c.Rand.Intn(3); i++ { //nolint:intrange // the bound is drawn again each time
			c.Add(c.Rand.Intn(len(c.AppSize)), false)
		}
	}
	if f.churn > 0 && c.Rand.Intn(20*f.churn) == 0 { // a node is drained
		node := c.Rand.Intn(10)
		for _, p := range slices.Clone(c.Pods) {
			if !p.Gone && !p.Ending && p.Node() >= 0 && p.Node()%10 == node {
				f.lose(p)
				c.Kill(p, true)
			}
		}
	}
	if f.churn > 0 && c.Rand.Intn(20*f.churn) == 0 && len(c.Dead) < 5 {
		p := c.Pods[c.Rand.Intn(len(c.Pods))]
		for _, q := range c.Pods { // rather a node with a Pod that is updated
			if q.Restarting() && q.Written && !q.Gone {
				p = q
			}
		}
		if p.Node() >= 0 && !p.Dead() {
			f.killNode(p.Node(), pick(c, 0, 200, 2000))
		}
	}
	if f.deleter > 0 && c.Now%f.deleter == 0 && deleteVictim(c) {
		f.Vanished++
	}
	f.happenWildly()
	for _, p := range c.Pods[min(from, len(c.Pods)):] {
		if p.App == f.bornBad {
			c.Chronic(p, 0, 1)
		}
	}
}

func (f *fuzzed) killNode(node, back int) {
	for _, p := range f.Pods {
		if p.Node() == node && p.Lives() {
			f.lose(p)
		}
	}
	f.KillNode(node, back)
}

// simulate lets up to four edits happen in a random cluster, and then a good one.
func simulate(t testing.TB, seed int64, m cluster.Mistake, to *found) {
	f := newFuzzed(t, seed, m)
	c := f.Cluster
	pass(c, 100, nil)
	budget := 0
	note := func() { budget = max(budget, c.Plan.Budget) }
	note()
	clean := true // there were only good images
	edits := 1 + c.Rand.Intn(4)
	for range edits {
		image := cluster.Image{}
		if c.Rand.Intn(3) > 0 {
			image, clean = f.worse(badImage(c)), false
		}
		image.Pull = pick(c, 0, 0, 0, 40)
		c.Contents = append(c.Contents, image)
		c.Forget()
		f.hold()
		c.Edit(len(c.Contents) - 1)
		length := pick(c, 20+c.Rand.Intn(100), 300+c.Rand.Intn(600), 1000+c.Rand.Intn(3000))
		c.Partition = pick(c, 0, 0, 0, .5, .9)
		c.Paused = c.Rand.Intn(10) == 0
		for end := c.Now + length; c.Now < end; {
			c.Step(f.happen)
			note()
			if c.Paused && c.Rand.Intn(200) == 0 {
				c.Paused = false
			}
		}
		served, down, tens := len(c.Victims), len(c.DownVictims), (length+599)/600
		switch {
		case image.Does == cluster.Evicted, image.Does == cluster.KillsNode:
			to.lost = append(to.lost, served)
			if most := 2 + 2*tens + 2*b2i(c.Vanished > 0)*tens; served > most+2 {
				to.breach(seed, "%d Pods got %+v in %d s, want at most %d", served, image, length, most+2)
			}
		case image.Does != cluster.Good:
			to.down = append(to.down, down)
			if c.Vanished == 0 {
				to.served = append(to.served, served)
			} else if most := 4 + 2*tens; served > most+2 {
				to.breach(seed, "%d victims of %+v in %d s, want at most %d", served, image, length, most)
			}
			if image.Does == cluster.NoStart && f.deleter == 0 && down > 3+2*length/600+2*edits {
				to.breach(seed, "%d Pods that were down got %+v in %d s", down, image, length)
			}
		case clean && c.PeakServed > budget && !f.undo:
			to.breach(seed, "%d Pods are down at maxUnavailable %d", c.PeakServed, budget)
			clean = false
		}
	}
	// The last edit is good, or a rollback to a good revision.
	last := 0
	if c.Rand.Intn(4) > 0 || c.Want == 0 || clean {
		c.Contents = append(c.Contents, cluster.Image{})
		last = len(c.Contents) - 1
	}
	c.Paused = false
	f.hold()
	c.Edit(last)
	begin, heard, repair := c.Now, c.Now, -1
	for c.Now < begin+aDay && (repair < 0 || c.Outdated() > 0) {
		c.Step(func() {
			if c.Now < begin+4*anHour {
				f.happen()
			}
		})
		if repair < 0 && (c.Count(f.waitsForRepair) == 0 || c.Now > begin+2*anHour) {
			repair = c.Now - begin
			c.Partition = 0
		}
		if c.Now-max(c.LastWrite, heard) > 900 && c.Outdated() > 0 && repair >= 0 {
			heard = c.Now
			if lie := c.Lie(); lie != "" {
				to.breach(seed, "%s", lie)
			}
		}
	}
	to.repairs, to.ends = append(to.repairs, repair), append(to.ends, c.Now-begin)
	if n := c.Outdated(); n > 0 {
		to.late = append(to.late, seed)
		to.breach(seed, "%d of %d Pods are outdated after a day, by rule %d: %+v", n, len(c.Pods), c.Plan.Rule, c.Plan.Numbers)
	}
}

// waitsForRepair: an earlier image broke the Pod, and nothing else keeps it from being repaired.
func (f *fuzzed) waitsForRepair(p *cluster.Pod) bool {
	does := f.Contents[p.Content].Does
	return p.Took && p.Content != f.Want && !p.OwnBad && !p.Ignores && !p.Stuck && !p.Refuses && !p.Undoes &&
		(f.Partition == 0 || does == cluster.NoStart || does == cluster.BreaksApp) && f.IsHurt(p)
}

// Random clusters. In every one, the last, good edit reaches all Pods within a day; what waits for
// more than fifteen minutes waits by a rule and for a Pod that do hold it up; a good image never
// has more Pods down than maxUnavailable. A bad image takes two Pods, in about 1 % of the cases more; one that
// evicts Pods or kills nodes takes one or two each ten minutes. What they broke is repaired within minutes.
func TestRandomClusters(t *testing.T) {
	seeds := cmp.Or(*seedsFlag, rounds.Of[int64](200, 25))
	var all found
	t.Run("seeds", func(t *testing.T) {
		const chunk = 20
		for from := *baseFlag; from < *baseFlag+seeds; from += chunk {
			t.Run(fmt.Sprint(from+1), func(t *testing.T) {
				t.Parallel()
				var f found
				for seed := from + 1; seed <= min(from+chunk, *baseFlag+seeds); seed++ {
					simulate(t, seed, cluster.Mistake{}, &f)
				}
				all.add(&f)
			})
		}
	})
	all.check(t)
}
