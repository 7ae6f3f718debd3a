package events

import (
	"maps"
	"slices"
	"time"
)

// Limits are the limits of a Queue.
type Limits struct {
	// Settle is the time that an Event waits first. If another Event replaces it
	// meanwhile, it is not written: a short state causes no Event.
	Settle time.Duration
	// Again is the shortest time between two Events with the same Action about the same
	// object. In this time, an Event about the same state as the last one is dropped: a
	// state that is left for a moment causes no second Event.
	Again time.Duration
	// Between is the time in which one more Event may be written. After a rest, Burst Events
	// may be written at once, one if it is 0.
	Between time.Duration
	Burst   int
	// Waiting is how many Events may wait. More are dropped.
	Waiting int
}

// The limits of the Queues of a process. Each writes less than an API server notices,
// and keeps less than a megabyte.
var (
	// StateLimits are for the state of SidecarSets: the Events of 500 SidecarSets that
	// come into force at once are written within a minute.
	StateLimits = Limits{Settle: time.Second, Again: 10 * time.Second, Between: 100 * time.Millisecond, Waiting: 1000}
	// ReviewLimits are for Events that AdmissionReviews cause, which any client on the
	// network may forge: 20 Events at once and then 12 a minute for the whole process, and one
	// with the same Action for a SidecarSet in 10 minutes.
	ReviewLimits = Limits{Again: 10 * time.Minute, Between: 5 * time.Second, Burst: 20, Waiting: 100}
	// PodLimits are for the leader's writes of single Pods: five a second. In a rollout
	// of thousands of Pods, some Events are dropped.
	PodLimits = Limits{Again: 10 * time.Minute, Between: 200 * time.Millisecond, Waiting: 1000}
)

// Queue decides when Events are written, and which are not. It is not safe for
// concurrent use.
type Queue struct {
	limits  Limits
	waiting []waiting        // in the order in which they came
	told    map[subject]told // what Next returned less than Again ago
	spent   time.Time        // until when Between is spent by the Events that Next returned
}

// subject is the object and Action of Events that replace each other.
type subject struct {
	about  SidecarSet
	pod    Pod
	action string
}

func subjectOf(e Event) subject { return subject{e.About, e.Pod, e.Action} }

type waiting struct {
	event Event
	due   time.Time
}

type told struct {
	reason string
	at     time.Time
}

// NewQueue returns an empty Queue.
func NewQueue(limits Limits) *Queue {
	return &Queue{limits: limits, told: map[subject]told{}}
}

// Add puts an Event into the queue. The Event replaces a waiting one with the same Action
// about the same object, and keeps its time. Add returns false if the Event is dropped.
func (q *Queue) Add(e Event, now time.Time) bool {
	key := subjectOf(e)
	i := slices.IndexFunc(q.waiting, func(w waiting) bool { return subjectOf(w.event) == key })
	last, again := q.told[key]
	again = again && now.Sub(last.at) < q.limits.Again
	switch {
	case again && last.reason == e.Reason:
		if i >= 0 {
			q.waiting = slices.Delete(q.waiting, i, i+1)
		}
		return false
	case i >= 0:
		q.waiting[i].event = e
		return true
	case len(q.waiting) >= q.limits.Waiting:
		return false
	}
	due := now.Add(q.limits.Settle)
	if again {
		due = later(due, last.at.Add(q.limits.Again))
	}
	q.waiting = append(q.waiting, waiting{e, due})
	return true
}

// Next takes the Event to write now. If there is none, ok is false, and wait says
// when to ask again; it is zero if none waits.
func (q *Queue) Next(now time.Time) (e Event, wait time.Duration, ok bool) {
	if len(q.waiting) == 0 {
		return Event{}, 0, false
	}
	first := 0
	for i := range q.waiting {
		if q.waiting[i].due.Before(q.waiting[first].due) {
			first = i
		}
	}
	due := later(q.waiting[first].due, q.spent.Add(-time.Duration(max(q.limits.Burst-1, 0))*q.limits.Between))
	if due.After(now) {
		return Event{}, due.Sub(now), false
	}
	e = q.waiting[first].event
	q.waiting = slices.Delete(q.waiting, first, first+1)
	q.spent = later(q.spent, now).Add(q.limits.Between)
	maps.DeleteFunc(q.told, func(_ subject, t told) bool { return now.Sub(t.at) >= q.limits.Again })
	q.told[subjectOf(e)] = told{e.Reason, now}
	return e, 0, true
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
