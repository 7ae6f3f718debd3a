package entryplan

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// Layout are the configuration objects, by index; nil for those that do not exist or
// cannot be read. Planning never changes what it points to.
type Layout [MaxConfigurations + 1]*admissionregistrationv1.MutatingWebhookConfiguration

// Change is what to do with one configuration object.
type Change struct {
	Index int
	// Object is what it has to become. Its resourceVersion is that of the object
	// from which this was planned. The writer has to make it a precondition.
	Object *admissionregistrationv1.MutatingWebhookConfiguration
	// Deferrable says that the change puts no entry on the fresh path, so that no
	// SidecarSet which is created or changed waits for it: entries settle, are repaired, or
	// go. If the change is not carried out, Next plans it again.
	Deferrable bool
}

// Locate returns the object that holds an entry, and its position there.
func (l *Layout) Locate(entry string) (configuration, position int, ok bool) {
	for i, c := range l {
		if at := find(c, entry); at >= 0 {
			return i, at, true
		}
	}
	return 0, 0, false
}

// Readable returns the objects that this version of the operator understands. It does not
// change others, and does not rely on them.
func (l Layout) Readable() Layout {
	for i, c := range l {
		if c != nil && !Readable(c.Annotations) {
			l[i] = nil
		}
	}
	return l
}

// Exist reports whether there is an object to write entries of stored SidecarSets in.
func (l *Layout) Exist() bool {
	return slices.ContainsFunc(l[:MaxConfigurations], func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool { return c != nil })
}

// Empty reports whether no object holds an entry.
func (l *Layout) Empty() bool {
	return !slices.ContainsFunc(l[:], func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool { return len(webhooks(c)) > 0 })
}

// Holds reports whether an object holds an entry as it should be, on either path; and
// which object does.
func (l *Layout) Holds(e Entry, s *Settings) (configuration int, ok bool) {
	i, at, ok := l.Locate(e.Name)
	if !ok {
		return 0, false
	}
	w := &l[i].Webhooks[at]
	path := pathOf(w)
	return i, (path == PathPods || path == PathPodsFresh) && s.says(w, &e, path) && len(w.ClientConfig.CABundle) > 0
}

// Serves returns the index of an object with an entry through which API servers call the
// operator on the fresh path for the same Pods: one with the same selectors and any failure
// policy, or the provisional one.
func (l *Layout) Serves(e Entry, s *Settings) (configuration int, ok bool) {
	for i, at := range l.alike(e, s) {
		if pathOf(&l[i].Webhooks[at]) == PathPodsFresh {
			return i, true
		}
	}
	return 0, false
}

// alike yields the object and the position of every entry of the operator that has the
// selectors of e and is not closed, so that reviews use it.
func (l *Layout) alike(e Entry, s *Settings) iter.Seq2[int, int] {
	pods, namespaces, name := orEverything(e.Selector), s.allowed(e.NamespaceSelector), e.provisional().Name
	return func(yield func(int, int) bool) {
		for i, c := range l {
			for at := range webhooks(c) {
				w := &c.Webhooks[at]
				if !isNarrowed(pods, w.ObjectSelector) || !isNarrowed(namespaces, w.NamespaceSelector) || w.Name == coarseName {
					continue
				}
				// By its name, an entry is narrowed by another program, or asked for like this.
				if is, _, ok := s.parse(w); ok && is.provisional().Name == name && Touched(c)[w.Name] != closed && !yield(i, at) {
					return
				}
			}
		}
	}
}

// Provisionals returns the names of the provisional entries that are present.
func (l *Layout) Provisionals() (names []string) {
	c := l[Provisional]
	for at := range webhooks(c) {
		if name := c.Webhooks[at].Name; strings.HasSuffix(name, provisionalSuffix) {
			names = append(names, name)
		}
	}
	return names
}

// ProvisionalNames returns the names that the provisional entries for the same Pods would have.
func ProvisionalNames(entries []Entry) map[string]bool {
	names := make(map[string]bool, len(entries))
	for i := range entries {
		names[entries[i].provisional().Name] = true
	}
	return names
}

func webhooks(c *admissionregistrationv1.MutatingWebhookConfiguration) []admissionregistrationv1.MutatingWebhook {
	if c == nil {
		return nil
	}
	return c.Webhooks
}

// Widen plans that API servers call the operator, on the fresh path, for the Pods of
// SidecarSets that are being admitted. If entries with the same selectors are present,
// Widen puts them on the fresh path. It changes nothing else about them: a stranger can
// send a review, so a review must not change what an entry says. If there are none, it
// adds a provisional entry, as long as there is room for one.
//
// Each object that serves a SidecarSet gets a new serial, also if nothing else about it
// changes. By the serial the leader knows that it has to wait for a SidecarSet. Widen
// removes no entry, not even a copy. It returns the entries that have no room. They are
// not in force until the leader has found a place for them.
//
// The first of the changes also records the names of the SidecarSets (see Recent). If
// it fails, the caller must not carry out the others.
func Widen(l Layout, entries []Entry, s *Settings) (changes []Change, unplaced []Entry) {
	p := newPlanning(l, s)
	recorded := map[string]string{}
	for _, e := range entries {
		if !p.touchAlike(e) && !p.provide(e) {
			unplaced = append(unplaced, e)
			continue
		}
		addContents(recorded, e.Contents)
	}
	p.record(recorded)
	changes = p.changes()
	if last := len(changes) - 1; last > 0 && changes[last].Index == Provisional {
		changes = slices.Insert(changes[:last:last], 0, changes[last])
	}
	return changes, unplaced
}

// State is what the leader knows. All times are of the leader's clock.
type State struct {
	Layout Layout
	// Wanted are the entries of all stored SidecarSets, combined.
	Wanted []Entry
	// Claimed names wanted entries that have to be written on the fresh path now, even if
	// they are on it already: the leader has not written them for the current content of a
	// SidecarSet.
	Claimed map[string]bool
	// Windows is what the leader has observed. An entry that is not in it has not
	// settled.
	Windows Windows
	// Now is the time, and Window how long an entry stays on the fresh path after it was
	// touched. An entry without members is kept for as long.
	Now    time.Time
	Window time.Duration
	// Complete says that a live list, which began after Wanted was read, showed that Wanted
	// has the entries of all stored SidecarSets. Without it no entry leaves the fresh path,
	// and none is removed because it has no members.
	Complete bool
	// Refused names entries that the API server does not take.
	Refused map[string]bool
	// CanServe is false while no replica can answer. Then no entry is added.
	CanServe bool
	// Expired names provisional entries that no SidecarSet was stored for in time.
	Expired map[string]bool
	// Room is how many provisional entries there may be from now on.
	Room int
}

// Plan is what the objects have to become.
type Plan struct {
	// Changes are in the order in which they have to be carried out. The one of the
	// object Provisional is the last. The leader carries it out only after all others,
	// when they are in force: it removes the entries that the others replace.
	Changes []Change
	// Overflow is the coarse entry, if there are too many entries for the objects; nil
	// otherwise.
	Overflow *Entry
	// Foreign are entries, by object, that are removed or repaired because the operator
	// would not have written them.
	Foreign map[string][]string
	// Again is the time after which the plan changes by itself; 0 if it does not.
	Again time.Duration
	// Incomplete says that the plan would be another one if State.Complete were true.
	Incomplete bool
}

// Next plans what the objects have to become.
func Next(state State, s *Settings) Plan {
	p := newPlanning(state.Layout, s)
	p.state = &state
	p.exclude()
	wanted := map[string]bool{}
	var unplaced []Entry
	for _, e := range state.Wanted {
		if state.Refused[e.Name] {
			continue
		}
		wanted[e.Name] = true
		_, _, present := p.layout.Locate(e.Name)
		if !present && !state.CanServe {
			wanted[coarseName] = true // it may serve this one
			continue
		}
		if !p.ensure(e, state.Claimed[e.Name]) {
			unplaced = append(unplaced, e)
		}
	}
	if len(unplaced) > 0 {
		overflow := merge(unplaced)
		wanted[coarseName] = true
		touch := slices.ContainsFunc(unplaced, func(e Entry) bool { return state.Claimed[e.Name] || p.provided(e) })
		if p.ensure(overflow, touch) {
			p.plan.Overflow = &overflow
		}
	}
	p.clear(wanted)
	p.clearProvisional()
	p.forget()
	p.plan.Changes = p.changes()
	return p.plan
}

// Anew plans again, from the layout now, a change of the object Provisional that Next has
// planned from the layout before: reviews write that object, too. It removes the same
// entries, except for those that reviews have touched since. It returns false if none is
// left.
func Anew(change Change, before, now Layout, s *Settings) (Change, bool) {
	was, p := before[Provisional], newPlanning(now, s)
	is := p.layout[Provisional]
	if was == nil || is == nil {
		return Change{}, false
	}
	touchedThen, touched := Touched(was), Touched(is)
	p.keep(Provisional, func(w *admissionregistrationv1.MutatingWebhook) bool {
		return find(change.Object, w.Name) >= 0 || find(was, w.Name) < 0 || touched[w.Name] != touchedThen[w.Name]
	})
	if !p.changed(Provisional) {
		return Change{}, false
	}
	changes := p.changes()
	return changes[len(changes)-1], true // it is written after all others
}

func merge(unplaced []Entry) Entry {
	policy := admissionregistrationv1.Ignore
	var members []string
	for _, e := range unplaced {
		members = append(members, e.Members...)
		if e.FailurePolicy == admissionregistrationv1.Fail {
			policy = admissionregistrationv1.Fail
		}
	}
	slices.Sort(members)
	return coarse(members, policy)
}

// RemoveAll plans that no object holds an entry.
func RemoveAll(l Layout) []Change {
	var changes []Change
	for i, c := range l {
		if len(webhooks(c)) > 0 {
			c = c.DeepCopy()
			empty(c)
			changes = append(changes, Change{Index: i, Object: c})
		}
	}
	return changes
}

// empty removes all entries of an object. The serial stays: an API server that is behind
// may use the former entries, and the next ones must have a higher serial, whatever the
// writer's clock shows.
func empty(c *admissionregistrationv1.MutatingWebhookConfiguration) {
	if serial := lastSerial(c); serial > 0 {
		annotate(c, annotationSerial, strconv.FormatInt(serial, 10))
	}
	c.Webhooks = nil
	setTouched(c, nil)
}

// Alone returns an object with one of its entries and no other, for a dry-run that shows
// whether the API server takes the entry; false if there is no such entry.
func Alone(c *admissionregistrationv1.MutatingWebhookConfiguration, entry string) (*admissionregistrationv1.MutatingWebhookConfiguration, bool) {
	at := find(c, entry)
	if at < 0 {
		return nil, false
	}
	alone := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: *c.ObjectMeta.DeepCopy()}
	alone.Webhooks = []admissionregistrationv1.MutatingWebhook{*c.Webhooks[at].DeepCopy()}
	return alone, true
}
