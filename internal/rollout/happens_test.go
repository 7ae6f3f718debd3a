package rollout_test

import (
	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/status"
)

const fourHours = 4 * anHour

func ends(does cluster.Effect, delay int, maxUnavailable float64, victims int) row {
	name := map[cluster.Effect]string{cluster.Evicted: "evicted", cluster.KillsNode: "kills its node"}[does]
	return row{
		name + sprint(" after ", delay, " s at ", maxUnavailable), scene{pods: 300, apps: 30, max: maxUnavailable, images: only(cluster.Image{Does: does, Delay: delay}), seconds: anHour},
		figures{victims: victims}, delay > 100 || maxUnavailable < 1,
	}
}

func nothing(*cluster.Cluster, int) {}

func at(second int, do func(*cluster.Cluster)) func(*cluster.Cluster, int) {
	return func(c *cluster.Cluster, t int) {
		if t == second {
			do(c)
		}
	}
}

func waits(seconds int) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) { pass(c, seconds, nil) }
}

// outage has three of four Pods down for five minutes, and allDown all of them for ten.
func outage(c *cluster.Cluster) {
	for _, p := range c.Pods {
		if p.ID%4 != 0 {
			c.GoDown(p, 300)
		}
	}
	pass(c, 1, nil)
}

func allDown(c *cluster.Cluster) {
	for _, p := range c.Pods {
		c.GoDown(p, 600)
	}
	pass(c, 5, nil)
}

// appGoesDown has app 0 down for three hours when half of the Pods are updated.
func appGoesDown(c *cluster.Cluster, _ int) {
	if c.Noted || c.Outdated() >= 150 {
		return
	}
	c.Noted = true
	for _, p := range c.Pods {
		if p.App == 0 {
			c.GoDown(p, 3*anHour)
		}
	}
}

func queue(n int) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) {
		for range n {
			c.Gate(c.Add(0, false))
		}
	}
}

// behind are 200 Pods that are younger than some without a node.
func behind(n int) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) {
		queue(n)(c)
		for i := range 200 {
			c.Add(i%20, true)
		}
	}
}

func staysDown(noStart bool) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) {
		pass(c, 100, nil)
		c.Chronic(c.Pods[0], 0, 1)
		c.Pods[0].OwnNoStart = noStart
	}
}

func crasher(c *cluster.Cluster) { c.Chronic(c.Pods[0], 0, 1) }

func loud(c *cluster.Cluster) { c.Loud = true }

func holds(c *cluster.Cluster) { c.Held = 0 }

func zones(c *cluster.Cluster) {
	c.Daemons = 10
	skew(0, 100)(c)
}

func zoneFails(c *cluster.Cluster) {
	for node := range 33 {
		c.KillNode(node, 0)
	}
}

// skew gives each Pod its own node, and every so many nodes a clock that is ahead.
func skew(by, every int) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) {
		for i, p := range c.Pods {
			c.Place(p, i)
			if i%every == 0 {
				c.Skew[i] = by
			}
		}
	}
}

func refuse(n int) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) {
		for _, p := range c.Pods[:n] {
			p.Refuses = true
		}
	}
}

func undo(n int) func(*cluster.Cluster) {
	return func(c *cluster.Cluster) {
		for _, p := range c.Pods[:n] {
			p.Undoes = true
		}
	}
}

func manyApps(c *cluster.Cluster) {
	for app := range 30 {
		size := 3
		if sizes := []int{200, 80, 40, 20, 20, 10, 10, 10}; app < len(sizes) {
			size = sizes[app]
		}
		for i := range size {
			c.Add(app, true).OwnBad = app > 24 && i == 0
		}
	}
}

func writes(c *cluster.Cluster) int { return c.Writes }

func reached(c *cluster.Cluster) (n int) {
	for _, p := range c.Pods {
		n += b2i(!p.Gone && p.Content == c.Want)
	}
	return n
}

// overtaken makes the second edit so many seconds after 100 Pods were restarting.
func overtaken(later int) func(*cluster.Cluster, int) {
	return func(c *cluster.Cluster, _ int) {
		if !c.Noted && c.Count((*cluster.Pod).Restarting) >= 100 {
			c.Noted = true
			c.After(later, func() { c.Edit(2) })
		}
	}
}

// isVictim: a Pod has the current image, and is not Ready, and not by itself.
func isVictim(c *cluster.Cluster, p *cluster.Pod) bool {
	return !p.Gone && !p.Ending && p.Written && p.Content == c.Want && !p.Ready() && !p.Restarting() && !p.OwnBad
}

// deletes deletes one Pod that the image broke, every so many seconds.
func deletes(every int) func(*cluster.Cluster, int) {
	return func(c *cluster.Cluster, t int) {
		if t%every == 0 {
			deleteVictim(c)
		}
	}
}

func deleteVictim(c *cluster.Cluster) bool {
	for _, p := range c.Pods {
		if isVictim(c, p) {
			c.Kill(p, true)
			return true
		}
	}
	return false
}

// fastDeleter deletes what is not Ready three seconds after its update.
func fastDeleter(c *cluster.Cluster, _ int) {
	for _, p := range c.Pods {
		if !p.Gone && p.Written && p.Content == c.Want && !p.Ready() && c.Now >= p.WrittenAt+3 {
			c.Kill(p, true)
		}
	}
}

func churn(n int) func(*cluster.Cluster, int) {
	return func(c *cluster.Cluster, t int) {
		if t%60 > 0 {
			return
		}
		for range n {
			if p := c.Pods[c.Rand.Intn(len(c.Pods))]; !p.Gone {
				c.Kill(p, true)
			}
		}
	}
}

// deletesOne deletes the first Pod of app 0 that is being updated.
func deletesOne(c *cluster.Cluster, _ int) {
	for _, p := range c.Pods {
		if !c.Noted && !p.Gone && p.Written && p.Before != podstate.WasNotReady && p.Restarting() && p.App == 0 {
			c.Kill(p, true)
			c.Noted = true
		}
	}
}

// nodesDie: in each of the first three minutes, the node of a Pod that is being updated dies.
func nodesDie(c *cluster.Cluster, t int) {
	if t%60 > 0 || t > 180 {
		return
	}
	for _, p := range c.Pods {
		if p.Lives() && p.Restarting() && p.Written {
			c.KillNode(p.Node(), 0)
			return
		}
	}
}

// deploys replaces the old Pods of 20 apps, four in five seconds.
func deploys(c *cluster.Cluster, t int) {
	if t < 10 || t%5 > 0 {
		return
	}
	for app := range 20 {
		for _, p := range c.Pods {
			if !p.Gone && p.App == app && p.ID < 2000 {
				c.Kill(p, true)
				break
			}
		}
	}
}

// deployedMeanwhile replaces all Pods, one in three seconds, from the first restart of a sidecar on.
func deployedMeanwhile(c *cluster.Cluster, _ int) {
	if c.Noted || c.Count((*cluster.Pod).Restarting) == 0 {
		return
	}
	c.Noted = true
	for i, p := range c.Pods {
		c.After(3*i, func() { c.Kill(p, true) })
	}
}

// isComplete reports whether the condition Progressing says that all Pods are updated.
func isComplete(c *cluster.Cluster) bool {
	n := int32(c.Count(func(*cluster.Pod) bool { return true }))
	seen := status.Observation{Name: "mesh", Generation: 1, Plan: &c.Plan, Counters: status.Counters{Matched: n, Updated: n - int32(c.Outdated())}}
	progressing := meta.FindStatusCondition(status.Next(appsv1beta1.SidecarSetStatus{}, seen).Conditions, appsv1beta1.ConditionProgressing)
	return c.Noted && progressing.Reason == appsv1beta1.ReasonComplete
}

// scaler removes a Pod that is not Ready, of an app with one that is being updated, every so many seconds. It
// is added again after half of that.
func scaler(every int) func(*cluster.Cluster, int) {
	return func(c *cluster.Cluster, t int) {
		if t >= 3 && (t-3)%every == 0 {
			app := c.Rand.Intn(len(c.AppSize))
			for _, p := range c.Pods {
				if !p.Gone && !p.Ending && p.Restarting() && p.Written {
					app = p.App
				}
			}
			if p := firstToGo(c, app); p != nil {
				c.Kill(p, false)
				c.After(every/2, func() { c.Add(app, false) })
			}
		}
	}
}

// firstToGo is the Pod of an app that a ReplicaSet deletes first.
func firstToGo(c *cluster.Cluster, app int) (found *cluster.Pod) {
	for _, p := range c.Pods {
		if p.Lives() && p.App == app && (found == nil || !p.Ready() && found.Ready()) {
			found = p
		}
	}
	return found
}
