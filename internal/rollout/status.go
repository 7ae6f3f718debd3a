package rollout

// Status is what is kept of the rollout of a revision apart from the records on Pods. An edit of the
// revision resets it. Times are in seconds since 1970.
type Status struct {
	// Started is when the first Pod was written; 0: none was, or it is not known.
	Started int64
	// NotReadyBefore is how many Pods were not Ready, and not by the operator, when the first Pod
	// was written; -1: none was.
	NotReadyBefore int
	// Disappeared is how many Pods disappeared that use the budget, and DisappearedUntil is until when
	// they do.
	Disappeared      int
	DisappearedUntil int64
}

// Begun is the Status of a rollout that has written no Pod.
var Begun = Status{NotReadyBefore: -1}

// Disappear returns the status after a Pod has disappeared: it is being deleted, it has failed, or a new
// list does not have it. p is what was known of the Pod before, and failed says that it is Failed now.
// available is Numbers.Available of the last plan. Call it once per Pod.
func (s Status) Disappear(p *Pod, of *Strategy, failed bool, available int, now int64) Status {
	until := s.keptUntil(p.look(now), of.minReady, failed, available, now)
	if until <= now {
		return s
	}
	s = s.at(now)
	s.Disappeared++
	s.DisappearedUntil = max(s.DisappearedUntil, until)
	return s
}

// keptUntil returns until when a Pod that disappears uses the budget; 0: it does not.
func (s Status) keptUntil(l look, minReady int64, failed bool, available int, now int64) int64 {
	if !l.counts() {
		return 0
	}
	if is, until := l.lost(now); is {
		return until
	}
	state, _ := l.state(minReady, now)
	switch current := l.current(); {
	case failed && current && !l.Dead && now < l.base+tenMinutes,
		current && state == FailedAfterUpdate,
		state == Updating && (failed || l.fails(minReady, now)):
		return now + tenMinutes
	case state != Updating:
		return 0
	case available == 0: // nothing is known of the revision yet: the longer, the more suspicious
		return now + min(tenMinutes, max(1, minReady, now-s.Started))
	}
	return now + max(1, minReady)
}

// Losing returns the status with the Pods that have disappeared since it was stored.
func (s Status) Losing(since Status, now int64) Status {
	s, since = s.at(now), since.at(now)
	s.Disappeared += since.Disappeared
	s.DisappearedUntil = max(s.DisappearedUntil, since.DisappearedUntil)
	return s
}

// IsStoredIn reports whether another status has the Pods that disappeared, or nothing depends on them
// any more.
func (s Status) IsStoredIn(stored Status, now int64) bool {
	s = s.at(now)
	return s.Disappeared == 0 || s.Disappeared == stored.Disappeared && s.DisappearedUntil == stored.DisappearedUntil
}

// at forgets Pods that no longer use the budget. A time that a rollout cannot have stored is of a leader
// whose clock was wrong.
func (s Status) at(now int64) Status {
	if now >= s.DisappearedUntil || s.DisappearedUntil > now+tenMinutes {
		s.Disappeared, s.DisappearedUntil = 0, 0
	}
	return s
}
