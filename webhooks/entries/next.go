package entries

import "time"

// slotFacts are all that decides what the leader does with a slot. Reads, plans and writes are elsewhere.
type slotFacts struct {
	differs bool          // the object is not what the stored SidecarSets need
	ours    bool          // the SidecarSets, a need or the bundle have changed since the last write
	stuck   bool          // an API server does not use the version that it should use
	tries   int           // how often the slot was written for that
	stays   time.Duration // for how long another program's edit stays; 0 or less if it does not
}

// slotAction is what the leader does with a slot.
type slotAction string

const (
	idle  slotAction = "nothing"
	write slotAction = "write what SidecarSets need"
	undo  slotAction = "undo the edit of another program"
	wait  slotAction = "leave the edit for a while: that program keeps editing the slot"
	mend  slotAction = "write anew, since an API server uses an older copy"
)

const (
	// An API server may keep an older copy of a slot until the object is written. That is tried so often.
	writesAnew = 5
	// notUsedSoon is how long an API server may take to use a version.
	notUsedSoon = 5 * time.Second
	// The edits of a program that keeps editing stay for 1 s, and for twice as long each time, up to
	// longestStay. After editsOfAProgram of them, SidecarSets are not Ready until it stops.
	longestStay     = time.Minute
	editsOfAProgram = 5
)

// next decides. The author of a SidecarSet does not wait until an edit of the same object may be undone.
func (f slotFacts) next() slotAction {
	switch {
	case f.stuck && f.tries < writesAnew:
		return mend
	case f.differs && f.ours:
		return write
	case f.differs && f.stays > 0:
		return wait
	case f.differs:
		return undo
	}
	return idle
}
