package entryplan

import (
	"maps"
	"time"
)

const (
	// provisionalFor is how long a provisional entry waits for its SidecarSet after a
	// review. Most SidecarSets are stored after 10 ms. If one takes longer, it is in force
	// when the leader has seen it.
	provisionalFor = time.Second
	// roomPause is the interval at which the limit rises by one.
	roomPause = 20 * time.Second
)

// ProvisionalRoom is a leader's state of provisional entries, and the limit of their
// number. The limit is lowered by one for each entry for which no SidecarSet is stored
// within a second, and for each further second by which reviews prolong an entry. It
// rises by one every roomPause. The zero value is that of a new leader. All times are
// of one clock. It is used by one goroutine.
type ProvisionalRoom struct {
	lives map[string]provisionalLife // by entry
	room  int
	known bool      // the limit has been read
	grown time.Time // when the limit last rose, or was at its maximum
}

// provisionalLife is the state of a provisional entry.
type provisionalLife struct {
	serial  int64     // of the last review
	seen    time.Time // when the leader first saw this serial
	since   time.Time // when the present second began
	expired bool      // it is being removed, because no SidecarSet was stored for it
}

// Observe updates the state from the objects at a time, and raises the limit if that is due.
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
		if room, ok := RoomOf(object); ok { // the limit that an earlier leader wrote stays valid
			p.room = room
		}
	case p.room >= MaxProvisional:
		p.grown = now
	case now.Sub(p.grown) >= roomPause:
		p.room, p.grown = p.room+1, now
	}
}

// Due returns the entries whose time is over, and the time until the next call; 0 if no
// entry waits. The caller removes them if a live list shows that no SidecarSet is
// stored for them. Each second by which a review prolongs an entry lowers the limit by
// one, once the second before it is over.
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

// Expire marks entries for removal, and lowers the limit by one for each.
func (p *ProvisionalRoom) Expire(names []string, now time.Time) {
	for _, name := range names {
		life := p.lives[name]
		life.expired = true
		p.lives[name] = life
		p.take(now)
	}
}

func (p *ProvisionalRoom) take(now time.Time) { p.room, p.grown = max(p.room-1, 0), now }

// Expired returns the entries to remove, for State.
func (p *ProvisionalRoom) Expired() map[string]bool {
	expired := map[string]bool{}
	for name, life := range p.lives {
		if life.expired {
			expired[name] = true
		}
	}
	return expired
}

// Room returns the limit of the number of entries, for State.
func (p *ProvisionalRoom) Room() int { return p.room }

// Len returns the number of entries.
func (p *ProvisionalRoom) Len() int { return len(p.lives) }
