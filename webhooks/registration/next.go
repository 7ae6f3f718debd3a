package registration

import "time"

// shardFacts are all that decides what the leader does with a shard. Reads, plans and writes are elsewhere.
type shardFacts struct {
	differs bool          // the object is not what the stored SidecarSets need
	ours    bool          // the SidecarSets, a dependency or the bundle have changed since the last write
	stuck   bool          // an API server does not use the version that it should use
	rest    time.Duration // until the leader may write what others have caused; 0 or less if it may
}

// shardAction is what the leader does with a shard.
type shardAction string

const (
	idle  shardAction = "nothing"
	write shardAction = "write what SidecarSets need"
	undo  shardAction = "undo the edit of another program"
	mend  shardAction = "write again, because an API server uses an older copy"
	wait  shardAction = "leave the edit, or the older copy, for a while: this comes again and again"
)

const (
	// notUsedSoon is how long an API server may take to use a version.
	notUsedSoon = 5 * time.Second
	// What others cause again and again is mended after 1 s, and after twice as long each time, up to longestRest.
	longestRest = time.Minute
)

// next decides. The user who applies a SidecarSet does not wait until what others have caused may be mended.
func (f shardFacts) next() shardAction {
	switch {
	case f.differs && f.ours:
		return write
	case (f.differs || f.stuck) && f.rest > 0:
		return wait
	case f.differs:
		return undo
	case f.stuck:
		return mend
	}
	return idle
}
