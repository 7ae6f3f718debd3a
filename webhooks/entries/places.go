package entries

import (
	"maps"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/events"
)

// places has the object of each wanted entry, and the edits by other programs.
type places struct {
	entries map[string]place // by name
	edits   [entryplan.MaxConfigurations + 1]edits
}

// place is the object of an entry. lost means that another program has removed or
// changed the entry.
type place struct {
	placement
	lost bool
}

// placement is an object with an entry, and the first serial of the object that has it.
type placement struct {
	configuration int
	serial        int64
}

// of returns the placement of an entry; false if no object is known to have the right entry.
func (p *places) of(entry string) (placement, bool) {
	known, ok := p.entries[entry]
	return known.placement, ok && !known.lost
}

// note updates the places. It returns the number of entries that were lost, and those
// that were restored.
func (p *places) note(v *view) (lost int, restored []entryplan.Entry) {
	wanted := v.wanted
	if v.overflow != nil {
		wanted = append(slices.Clone(wanted), *v.overflow)
	}
	names := map[string]bool{}
	for _, e := range wanted {
		names[e.Name] = true
		before, was := p.of(e.Name)
		i, holds := v.layout.Holds(e, v.settings)
		switch {
		case !holds && was:
			lost++
			p.entries[e.Name] = place{before, true}
		case holds && (!was || before.configuration != i):
			if p.entries[e.Name].lost {
				restored = append(restored, e)
			}
			p.entries[e.Name] = place{placement{i, entryplan.Serial(v.layout[i])}, false}
		}
	}
	maps.DeleteFunc(p.entries, func(name string, _ place) bool { return !names[name] })
	return lost, restored
}

// place updates the places, and records an Event about each SidecarSet whose entry the
// leader restored.
func (l *leader) place(v *view) {
	if v.settings == nil {
		return
	}
	lost, restored := l.places.note(v)
	l.webhooks.m.restored.Add(float64(lost))
	for _, e := range restored {
		at, _ := l.places.of(e.Name)
		for _, member := range e.Members {
			if program, ok := v.catalog.Get(member); ok {
				l.webhooks.options.RecordEvent(events.EntryRestored(events.Of(program.Set), v.layout[at.configuration].Name))
			}
		}
	}
}

// restores reports whether a change restores a lost entry.
func (p *places) restores(change entryplan.Change) bool {
	return slices.ContainsFunc(change.Object.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return p.entries[w.Name].lost })
}

// edits counts how often the leader undid changes of a configuration object by other programs.
type edits struct {
	count int
	last  time.Time
	by    string // the field manager of the last change; "" if it is not known
}

// Five edits by other programs, each within two minutes of the last, mean that another
// program keeps editing the object. Until it stops, Ready stays False, even while the
// entry is correct. The leader waits for a second before it undoes the second edit, and then
// twice as long each time.
const (
	editsOfAProgram = 5
	pauseOfEdits    = 2 * longestWait
	longestWait     = time.Minute
)

func (e *edits) note(now time.Time, by string) {
	if now.Sub(e.last) >= pauseOfEdits {
		e.count = 0
	}
	e.count++
	e.last, e.by = now, by
}

func (e *edits) goOn(now time.Time) bool {
	return e.count >= editsOfAProgram && now.Sub(e.last) < pauseOfEdits
}

// wait is how long the next edit stays.
func (e *edits) wait(now time.Time) time.Duration {
	if e.count == 0 || now.Sub(e.last) >= pauseOfEdits {
		return 0
	}
	return min(time.Second<<min(e.count-1, 6), longestWait) - now.Sub(e.last)
}
