package entryplan

import (
	"maps"
	"time"
)

const (
	// provisionalFor is how long a provisional entry waits for its SidecarSet after a
	// review. Most are stored after 10 ms. One that takes longer is in force when the
	// leader has seen it.
	provisionalFor = time.Second
	// roomPause is how long it takes until a place comes back.
	roomPause = 20 * time.Second
)

// ProvisionalRoom is what a leader remembers of provisional entries, and how many of
// them it allows. An entry for which no SidecarSet is stored within a second takes a
// place away, and so does each further second by which reviews prolong it. Places come
// back one after the other. The zero value is that of a new leader. All times are of one
// clock. It is used by one goroutine.
type ProvisionalRoom struct {
	lives map[string]provisionalLife // by entry
	room  int
	known bool      // room has been read
	grown time.Time // when a place came back last, or none was missing
}

// provisionalLife is what is known of a provisional entry.
type provisionalLife struct {
	serial  int64     // of the last review
	seen    time.Time // when that was seen
	since   time.Time // when the present second began
	expired bool      // it is being removed, since no SidecarSet was stored for it
}

// Observe takes in the objects as they are at a time, and lets the room grow.
func (p *ProvisionalRoom) Observe(l Layout, now time.Time) {
	if p.lives == nil {
		p.lives = map[string]provisionalLife{}
	}
	object := l[Provisional]
	present := map[string]bool{}
	if object != nil {
		touched := Touched(object)
		for _, name := range l.Provisionals() {
			present[name] = true
			life, ok := p.lives[name]
			if !ok {
				life.since = now
			}
			if !ok || life.serial != touched[name] {
				life.serial, life.seen, life.expired = touched[name], now, false
			}
			p.lives[name] = life
		}
	}
	maps.DeleteFunc(p.lives, func(name string, _ provisionalLife) bool { return !present[name] })
	switch {
	case !p.known && object != nil:
		p.known, p.room, p.grown = true, MaxProvisional, now
		if room, ok := RoomOf(object); ok { // what an earlier leader took away stays away
			p.room = room
		}
	case p.room >= MaxProvisional:
		p.grown = now
	case now.Sub(p.grown) >= roomPause:
		p.room, p.grown = p.room+1, now
	}
}

// Due returns the entries whose time is over, and after what time to ask again; 0 if no
// entry waits. They are to be removed if a live list shows that no SidecarSet is stored
// for them. A second by which a review prolongs an entry costs a place once the one
// before it is over.
func (p *ProvisionalRoom) Due(wanted []Entry, now time.Time) (due []string, again time.Duration) {
	if len(p.lives) == 0 {
		return nil, 0
	}
	stored := ProvisionalNames(wanted)
	for name, life := range p.lives {
		if stored[name] || life.expired {
			continue
		}
		if now.Sub(life.since) >= provisionalFor && life.seen.After(life.since) {
			life.since = life.seen
			p.lives[name] = life
			p.take(now)
		}
		switch left := provisionalFor - now.Sub(life.since); {
		case left <= 0:
			due = append(due, name)
		case again == 0 || left < again:
			again = left
		}
	}
	return due, again
}

// Expire makes entries ones to remove. Each takes a place away.
func (p *ProvisionalRoom) Expire(names []string, now time.Time) {
	for _, name := range names {
		life := p.lives[name]
		life.expired = true
		p.lives[name] = life
		p.take(now)
	}
}

func (p *ProvisionalRoom) take(now time.Time) { p.room, p.grown = max(p.room-1, 0), now }

// Expired are the entries to remove, as State wants them.
func (p *ProvisionalRoom) Expired() map[string]bool {
	expired := map[string]bool{}
	for name, life := range p.lives {
		if life.expired {
			expired[name] = true
		}
	}
	return expired
}

// Room is how many entries there may be, as State wants it.
func (p *ProvisionalRoom) Room() int { return p.room }

// Len is how many there are.
func (p *ProvisionalRoom) Len() int { return len(p.lives) }
