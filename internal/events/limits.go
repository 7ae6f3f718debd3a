package events

import "time"

// Limits bound the Events that are written, so that their writer needs not know what they are about.
type Limits struct {
	// Settle is the time that an Event waits first. If another Event replaces it
	// meanwhile, it is not written: a short state causes no Event.
	Settle time.Duration
	// Again is the shortest time between two Events with the same Action about the same
	// object. In this time, an Event about the same state as the last one is dropped: a
	// state that is left for a moment causes no second Event.
	Again time.Duration
	// Between is the time in which one more Event may be written. After a rest, Burst Events
	// may be written immediately, one if it is 0.
	Between time.Duration
	Burst   int
	// Waiting is how many Events may wait. More are dropped.
	Waiting int
}

// The limits of the writers of a process. Each writes too little to load an API server,
// and keeps less than a megabyte.
var (
	// StateLimits are for the state of SidecarSets: the Events of 500 SidecarSets that
	// become Ready together are written within a minute.
	StateLimits = Limits{Settle: time.Second, Again: 10 * time.Second, Between: 100 * time.Millisecond, Waiting: 1000}
	// ReviewLimits are for Events that AdmissionReviews cause, which any client on the
	// network may forge: 20 Events together and then 12 a minute for the whole process, and one
	// with the same Action for a SidecarSet in 10 minutes.
	ReviewLimits = Limits{Again: 10 * time.Minute, Between: 5 * time.Second, Burst: 20, Waiting: 100}
	// PodLimits are for the leader's writes of single Pods: five a second. In a rollout
	// of thousands of Pods, some Events are dropped.
	PodLimits = Limits{Again: 10 * time.Minute, Between: 200 * time.Millisecond, Waiting: 1000}
)
