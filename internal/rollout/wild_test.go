package rollout_test

import (
	"math/rand"

	"github.com/sidecarset/operator/internal/fixtures/cluster"
)

// wild are troubles that a cluster may have in addition. They draw from their own random numbers.
type wild struct {
	*rand.Rand
	queue, refuse, undo, zone, birth, scale bool

	every, schedule int
}

func (f *fuzzed) newWild(seed int64) {
	w := &f.wild
	w.Rand = rand.New(rand.NewSource(seed * 7919))
	one := func(in int) bool { return w.Intn(in) == 0 }
	clocks := one(6)
	w.queue, w.refuse, w.undo, w.zone, w.birth, w.scale = one(4), one(5), one(8), one(6), one(4), one(3)
	w.every, w.schedule = []int{60, 120, 180, 300}[w.Intn(4)], []int{30, 300, 3000}[w.Intn(3)]
	f.Restless = f.Restless && !w.refuse // only a leader that stays knows what was refused
	if one(4) {
		f.deleter = []int{10, 60, 300}[w.Intn(3)]
	}
	if n := len(f.Pods); w.queue {
		for range 1 + w.Intn(1+n/2) {
			f.Gate(f.Add(w.Intn(len(f.AppSize)), false))
		}
	}
	app := w.Intn(len(f.AppSize))
	for _, p := range f.Pods {
		p.Refuses = w.refuse && w.Intn(3) == 0
		p.Undoes = w.undo && p.App == app
	}
	if clocks {
		for i := range f.Skew {
			if w.Intn(4) == 0 {
				f.Skew[i] = w.Intn(36000) - 18000
			}
		}
		if one(2) {
			f.LeaderSkew = []int{fourHours, -fourHours}[w.Intn(2)]
		}
	}
}

// worse makes a bad image one that evicts its Pods or kills nodes, at times.
func (w *wild) worse(image cluster.Image) cluster.Image {
	if w.Intn(3) > 0 {
		return image
	}
	bad := cluster.Image{Does: []cluster.Effect{cluster.Evicted, cluster.KillsNode}[w.Intn(2)], Delay: []int{5, 20, 55}[w.Intn(3)]}
	bad.ExitsWith0 = bad.Does == cluster.Evicted && w.Intn(3) == 0
	return bad
}

// hold lets new Pods get the last good revision for a while after an edit, at times.
func (f *fuzzed) hold() {
	if f.Held = -1; f.birth && f.wild.Intn(2) == 0 {
		for f.Held = f.Want; f.Held > 0 && f.Contents[f.Held].Does != cluster.Good; f.Held-- {
		}
	}
}

// happenWildly is a second of the troubles.
func (f *fuzzed) happenWildly() {
	c, w := f.Cluster, &f.wild
	p := c.Pods[w.Intn(len(c.Pods))]
	if p.Node() < 0 && !p.Gone && w.Intn(w.schedule) == 0 {
		c.Schedule(p)
	}
	if c.LeaderSkew != 0 && w.Intn(900) == 0 { // the next leader's clock is right
		c.LeaderSkew = 0
		c.NewLeader()
	}
	if c.Held >= 0 && w.Intn(1200) == 0 {
		c.Held = -1
	}
	if w.scale && c.Now%w.every == 0 {
		app := w.Intn(len(c.AppSize))
		if q := firstToGo(c, app); q != nil {
			f.lose(q)
			c.Kill(q, false)
			c.After(1+w.Intn(180), func() { c.Add(app, false) })
		}
	}
	if w.zone && w.Intn(4000) == 0 {
		w.zone = false
		back := []int{200, 2000, 0}[w.Intn(3)]
		for node := range 30 {
			if !c.Dead[node] {
				f.killNode(node, back)
			}
		}
	}
	if w.Intn(3000) == 0 && p.Lives() && p.Node() >= 0 { // evicted for another reason
		f.lose(p)
		c.Evict(p, false)
	}
}
