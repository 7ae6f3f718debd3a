package rollout

import "slices"

// recreation is what a leader remembers of the evictions for one content.
type recreation struct {
	asked Recreation
	// answered is how many evicted Pods have new ones that were Ready.
	answered int
	// why says why nothing is evicted, "" if nothing is wrong; brake is when evictions go on even so.
	brake int64
	why   string
}

// Recreation is what has to be known before a Pod is evicted.
type Recreation struct {
	// Since is when the content became current, in seconds; 0 if that is not known yet.
	Since int64
	// InForce: the next Pod gets the content.
	InForce bool
}

// eviction is one Pod that was evicted.
type eviction struct {
	pod string // namespace/name
	at  int64
}

// isOld reports whether the controller has had the time to create a new Pod.
func (v eviction) isOld(now int64) bool { return v.at+evictionHeld <= now }

// SetRecreation sets what is known about evictions. Without a call, no Pod is evicted.
func (r *Rollout) SetRecreation(to Recreation) { r.asked = to }

const (
	// evictionHeld is how long an eviction takes a place at least: for the controller to create
	// a new Pod.
	evictionHeld = 30
	// replacedWithin is how long a new Pod may take to be Ready, and braked how long nothing is
	// evicted after one has taken longer.
	replacedWithin, braked = 600, 600
	// maxUnanswered is after how many evictions without a new Pod nothing is evicted for a while.
	maxUnanswered = 3
)

// evicted notes an eviction.
func (r *Rollout) evicted(e *entry, now int64) {
	c := e.crew
	if len(c.evictions) == 0 {
		c.since, c.had = r.asked.Since, 0
		for _, other := range r.entries {
			if other != nil && other.crew == c && other.Record.Order.Created >= c.since {
				c.had++
			}
		}
	}
	c.evictions = append(c.evictions, eviction{e.fullName(), now})
}

// replaced returns how many places the evictions of a crew take: the recent ones, and of the
// others as many as there are new Pods that are not Ready. Once as many new Pods are Ready as were
// evicted, the evictions are forgotten.
func (r *Rollout) replaced(c *crew, now int64) (places int, again int64) {
	if len(c.evictions) == 0 {
		return 0, 0
	}
	if c.freshDown == 0 && c.fresh-c.had >= len(c.evictions) {
		r.answered += len(c.evictions)
		r.moved, r.begun = now, false
		c.evictions = nil
		return 0, 0
	}
	if c.freshDown == 0 { // no new Pod came for these, as after a scale-down
		c.evictions = slices.DeleteFunc(c.evictions, func(v eviction) bool { return v.at+evictionHeld+braked <= now })
	}
	recent := 0
	for _, v := range c.evictions {
		if !v.isOld(now) {
			recent++
			again = sooner(again, v.at+evictionHeld)
		}
	}
	return recent + min(len(c.evictions)-recent, c.freshDown), again
}

// applyBrake stops evictions while new Pods do not come, or do not become Ready: for braked seconds
// at most. Then the evictions that were the cause are forgotten.
func (r *Rollout) applyBrake(now int64) {
	unanswered := 0
	var causes []*crew
	r.why = ""
	for _, c := range r.crews {
		old := 0
		for _, v := range c.evictions {
			if v.isOld(now) {
				old++
			}
		}
		missing := max(0, min(old, len(c.evictions)-(c.fresh-c.had)))
		late := old > 0 && c.freshDown > 0 && now-c.oldest >= replacedWithin
		if unanswered += missing; missing > 0 || late {
			causes = append(causes, c)
		}
		if late {
			r.why = "the new Pod of a controller, one of whose Pods was evicted, has not become Ready for ten minutes"
		}
	}
	if unanswered >= maxUnanswered {
		r.why = "no new Pods were created for three Pods that were evicted"
	}
	switch {
	case r.why == "":
		r.brake = 0
	case r.brake == 0:
		r.brake = now + braked
	case now >= r.brake:
		r.brake, r.why = 0, ""
		for _, c := range causes {
			c.evictions = slices.DeleteFunc(c.evictions, func(v eviction) bool { return v.isOld(now) })
		}
	}
}

// mayEvict reports whether one more Pod may be evicted, apart from the budget, when replaced
// places are taken by evictions.
func (r *Rollout) mayEvict(replaced int, now int64) bool {
	return r.asked.InForce && r.asked.Since != 0 && r.why == "" && now >= r.began+evictionHeld && replaced < max(1, r.answered)
}
