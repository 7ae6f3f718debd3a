package rollout

// Status is what is kept of the rollout of a content besides the records on Pods. An edit of the
// content resets it.
type Status struct {
	// NotReadyBefore is how many Pods were not Ready, and not by the operator, when the first Pod
	// was written; -1: none was.
	NotReadyBefore int
	// Disappeared is how many charged Pods disappeared, and DisappearedUntil is until when their
	// places are kept, in seconds.
	Disappeared      int
	DisappearedUntil int64
}

// Begun is the Status of a rollout that has written no Pod.
var Begun = Status{NotReadyBefore: -1}

// Lose returns the status after a charged Pod has disappeared.
func (s Status) Lose(now int64) Status {
	s = s.at(now)
	s.Disappeared++
	s.DisappearedUntil = now + tenMinutes
	return s
}

// Losing returns the status with the places of Pods that have disappeared since it was stored.
func (s Status) Losing(since Status, now int64) Status {
	s, since = s.at(now), since.at(now)
	s.Disappeared += since.Disappeared
	s.DisappearedUntil = max(s.DisappearedUntil, since.DisappearedUntil)
	return s
}

func (s Status) at(now int64) Status {
	if now >= s.DisappearedUntil {
		s.Disappeared, s.DisappearedUntil = 0, 0
	}
	return s
}
