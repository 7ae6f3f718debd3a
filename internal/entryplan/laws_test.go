package entryplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/rounds"
)

// world is a cluster as far as entries go: objects that are stored, replicas
// that remember old ones, SidecarSets that come and go, and a user who edits.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	stored   entryplan.Layout
	past     []entryplan.Layout // layouts that a replica may still have
	version  int
	clock    int64
	serials  [entryplan.MaxConfigurations + 1]int64 // the highest that was ever stored
	sets     map[string]entryplan.Entry
	unknown  map[string]bool  // by SidecarSet: the leader has not written for it
	claimed  map[string]bool  // by entry, when the leader began
	behind   bool             // the leader cannot be sure to know all SidecarSets
	settled  map[string]int64 // by entry: the widening that has settled
	refused  map[string]bool  // by entry
	expired  map[string]bool  // by provisional entry
	room     int
	canServe bool
}

func newWorld(t *testing.T, seed uint64) *world {
	return &world{
		t: t, stored: bare(), rng: rand.New(rand.NewPCG(seed, 1)), clock: 1000, canServe: true, room: entryplan.MaxProvisional,
		sets: map[string]entryplan.Entry{}, unknown: map[string]bool{}, settled: map[string]int64{}, refused: map[string]bool{}, expired: map[string]bool{},
	}
}

func (w *world) settings() *entryplan.Settings {
	s := settings()
	s.MinSerial = w.clock
	return s
}

// anEntry returns the entry of a SidecarSet that shares its selector with others.
func (w *world) anEntry(name string) entryplan.Entry {
	set := sidecarSet(name, fmt.Sprint("app-", w.rng.IntN(6)))
	if w.rng.IntN(4) == 0 {
		set.Annotations = map[string]string{"sidecarset.io/failure-policy": "Ignore"}
	}
	return entryOf(w.t, set)
}

func (w *world) aSidecarSet() string { return fmt.Sprint("set-", w.rng.IntN(8)) }

// write carries out a change as an API server would. There is a conflict if the change was
// planned from another version than the stored one, or if no object is stored.
func (w *world) write(change entryplan.Change) (conflict bool) {
	w.t.Helper()
	stored := w.stored[change.Index]
	if stored == nil || change.Object.ResourceVersion != stored.ResourceVersion {
		return true
	}
	if change.Object.Name != entryplan.ConfigurationName(change.Index) {
		w.t.Fatalf("%s is not object %d", change.Object.Name, change.Index)
	}
	if serial := entryplan.Serial(change.Object); len(change.Object.Webhooks) > 0 && serial <= w.serials[change.Index] {
		w.t.Fatalf("%s is written with serial %d after %d", change.Object.Name, serial, w.serials[change.Index])
	}
	w.put(change.Index, change.Object)
	return false
}

func (w *world) put(i int, object *configuration) {
	w.version++
	object = object.DeepCopy()
	object.ResourceVersion = fmt.Sprint(w.version)
	w.stored[i] = object
	w.serials[i] = max(w.serials[i], entryplan.Serial(object))
}

// widen is what a replica does for SidecarSets that are being admitted. The layout that it
// believes may be old; then it gets the stored objects and plans again.
func (w *world) widen(wanted []entryplan.Entry) {
	w.t.Helper()
	believed := w.stored
	if len(w.past) > 0 && w.rng.IntN(2) == 0 {
		believed = w.past[w.rng.IntN(len(w.past))]
	}
	var unplaced []entryplan.Entry
	for range 4 {
		before := clone(believed)
		var changes []entryplan.Change
		changes, unplaced = entryplan.Widen(believed, entryplan.Combine(wanted), w.settings())
		w.unchanged(before, believed)
		w.changesOnlyPaths(believed, carryOut(believed, changes))
		conflicts := false
		for _, change := range changes {
			conflicts = w.write(change) || conflicts
			believed[change.Index] = w.stored[change.Index]
		}
		if !conflicts {
			break
		}
	}
	for _, e := range wanted {
		if slices.ContainsFunc(unplaced, func(h entryplan.Entry) bool { return h.Name == e.Name }) {
			continue
		}
		i, ok := believed.Serves(e, w.settings())
		if !ok {
			w.t.Fatalf("nothing serves %v after it was widened", &e)
		}
		if !slices.Contains(slices.Collect(maps.Values(entryplan.Touched(w.stored[i]))), entryplan.Serial(w.stored[i])) {
			w.t.Fatalf("%v was widened, and no entry of %s is touched by serial %d", &e, w.stored[i].Name, entryplan.Serial(w.stored[i]))
		}
	}
}

// changesOnlyPaths complains about an entry that a review removed or changed in more than
// its path, and about an entry that it added and that is not provisional.
func (w *world) changesOnlyPaths(before, after entryplan.Layout) {
	w.t.Helper()
	for i, c := range before {
		if c == nil {
			if after[i] != nil {
				w.t.Fatalf("widening made object %d", i)
			}
			continue
		}
		known := map[string]admissionregistrationv1.MutatingWebhook{}
		for _, hook := range c.Webhooks {
			hook.ClientConfig = admissionregistrationv1.WebhookClientConfig{}
			known[hook.Name] = hook
		}
		for _, hook := range after[i].Webhooks {
			hook.ClientConfig = admissionregistrationv1.WebhookClientConfig{}
			was, stood := known[hook.Name]
			delete(known, hook.Name)
			switch {
			case strings.HasSuffix(hook.Name, ".barrier.sidecarset.io"):
			case stood && i != entryplan.Provisional:
				if diff := cmp.Diff(was, hook); diff != "" {
					w.t.Fatalf("widening changed %s (-before +after):\n%s", hook.Name, diff)
				}
			case i != entryplan.Provisional:
				w.t.Fatalf("widening added %s to %s", hook.Name, after[i].Name)
			case !stood && (*hook.FailurePolicy != admissionregistrationv1.Ignore || *hook.TimeoutSeconds != 1):
				w.t.Fatalf("a provisional entry is %v", hook)
			}
		}
		for name := range known {
			// A write empties an object in which only others have entries.
			if !strings.HasSuffix(name, ".barrier.sidecarset.io") && len(podEntryNames(c)) > 0 {
				w.t.Fatalf("widening took %s out of object %d", name, i)
			}
		}
	}
	if was, is := podEntryNames(before[entryplan.Provisional]), podEntryNames(after[entryplan.Provisional]); len(is) > max(len(was), entryplan.MaxProvisionals) {
		w.t.Fatalf("there are %d provisional entries", len(is))
	}
}

func podEntryNames(c *configuration) (names []string) {
	if c == nil {
		return nil
	}
	for i := range c.Webhooks {
		if name := c.Webhooks[i].Name; strings.HasSuffix(name, ".pods.sidecarset.io") {
			names = append(names, name)
		}
	}
	return names
}

func clone(l entryplan.Layout) entryplan.Layout {
	for i, c := range l {
		l[i] = c.DeepCopy()
	}
	return l
}

func (w *world) unchanged(before, after entryplan.Layout) {
	w.t.Helper()
	if !reflect.DeepEqual(before, after) {
		w.t.Fatalf("planning changed its input (-before +after):\n%s", cmp.Diff(before, after))
	}
}

// edit is what a user with kubectl does to an object.
func (w *world) edit() {
	i := w.rng.IntN(len(w.stored))
	if w.stored[i] == nil {
		w.put(i, bare()[i]) // applied again
		return
	}
	c := w.stored[i].DeepCopy()
	at := w.rng.IntN(max(len(c.Webhooks), 1))
	edits := 13
	if len(c.Webhooks) == 0 {
		edits = 2
	}
	switch w.rng.IntN(edits) {
	case 0:
		w.stored[i] = nil
		return
	case 1:
		c.Webhooks = nil
	case 2:
		c.Webhooks = slices.Delete(c.Webhooks, at, min(at+1, len(c.Webhooks)))
	case 3:
		c.Webhooks[at].ClientConfig.Service.Path = new("/elsewhere")
	case 4:
		c.Webhooks[at].ClientConfig.CABundle = nil
	case 5:
		c.Webhooks[at].ObjectSelector = nil
	case 6:
		c.Annotations = map[string]string{touchedAnnotation: []string{"null", "no", "{}", "[]"}[w.rng.IntN(4)]}
	case 7:
		c.Labels, c.OwnerReferences = nil, nil
	case 8:
		addWebhook(c, admissionregistrationv1.MutatingWebhook{Name: "other.example.com"})
	case 9:
		addWebhook(c, admissionregistrationv1.MutatingWebhook{Name: "other.pods.sidecarset.io"})
	case 10: // an old backup
		if len(w.past) > 0 {
			if old := w.past[0][i]; old != nil {
				c = old.DeepCopy()
			}
		}
	case 11: // a copy in another object
		if other := w.rng.IntN(entryplan.MaxConfigurations); w.stored[other] != nil {
			added := c.Webhooks[at]
			c, i = w.stored[other].DeepCopy(), other
			addWebhook(c, added)
		}
	case 12:
		if barrier := barrierOf(c); barrier != nil {
			barrier.ClientConfig.Service.Path = new(fmt.Sprintf("/barrier/%s/%d", c.Name, w.clock+w.rng.Int64N(3000)-2000))
		}
	}
	w.put(i, c)
}

// addWebhook adds a webhook unless there is one of that name: API servers accept each name
// once in an object.
func addWebhook(c *configuration, added admissionregistrationv1.MutatingWebhook) {
	if !slices.ContainsFunc(c.Webhooks, func(hook admissionregistrationv1.MutatingWebhook) bool { return hook.Name == added.Name }) {
		c.Webhooks = append(c.Webhooks, added)
	}
}

// happen is one thing that can happen.
func (w *world) happen() {
	w.t.Helper()
	w.clock += 1 + w.rng.Int64N(1000)
	switch w.rng.IntN(14) {
	case 13:
		w.narrow()
	case 12:
		w.behind = !w.behind
	case 10: // provisional entries have waited for long enough
		for _, name := range w.stored.Provisionals() {
			w.expired[name] = true
		}
	case 11:
		w.room = w.rng.IntN(entryplan.MaxProvisional + 1)
	case 0, 1: // one or two are admitted, stored at once
		admitted := map[string]entryplan.Entry{}
		for range 1 + w.rng.IntN(2) {
			name := w.aSidecarSet()
			admitted[name] = w.anEntry(name)
		}
		var list []entryplan.Entry
		for name, e := range admitted {
			w.unknown[name] = true
			w.sets[name] = e
			list = append(list, e)
		}
		w.widen(list)
	case 2: // admitted and not stored yet, or never
		w.widen([]entryplan.Entry{w.anEntry("on-its-way")})
	case 3: // stored by a replica that widens nothing
		name := w.aSidecarSet()
		w.unknown[name], w.sets[name] = true, w.anEntry(name)
	case 4:
		delete(w.sets, w.aSidecarSet())
	case 5:
		w.unknown = map[string]bool{}
	case 6: // time has passed
		for _, c := range w.stored {
			for _, name := range podEntryNames(c) {
				w.settled[name] = entryplan.Touched(c)[name]
			}
		}
	case 7:
		w.edit()
	case 8:
		w.canServe = !w.canServe
	case 9:
		if name := w.anEntry("x").Name; w.refused[name] {
			delete(w.refused, name)
		} else if w.rng.IntN(3) == 0 {
			w.refused[name] = true
		}
	}
	if w.past = append(w.past, w.stored); len(w.past) > 5 {
		w.past = w.past[1:]
	}
}

func (w *world) isSettled(entry string, touched int64) bool {
	at, ok := w.settled[entry]
	return ok && at == touched
}

func (w *world) state() entryplan.State {
	wanted := make([]entryplan.Entry, 0, len(w.sets))
	for _, e := range w.sets {
		wanted = append(wanted, e)
	}
	windows, members := entryplan.Windows{}, map[string]bool{}
	for _, c := range w.stored {
		for _, name := range podEntryNames(c) {
			if w.isSettled(name, entryplan.Touched(c)[name]) {
				windows[name] = entryplan.Window{Since: hourAgo}
			}
		}
	}
	for i := range wanted {
		for _, member := range wanted[i].Members {
			if w.unknown[member] {
				members[wanted[i].Name] = true
			}
		}
	}
	return entryplan.State{
		Layout: w.stored, Wanted: entryplan.Combine(wanted), CanServe: w.canServe, Refused: w.refused, Room: w.room, Expired: maps.Clone(w.expired),
		Claimed: members, Windows: windows, Now: noon, Window: time.Hour, Complete: !w.behind,
	}
}

// lead plans and writes until there is nothing to do.
func (w *world) lead() {
	w.t.Helper()
	w.claimed = maps.Clone(w.state().Claimed)
	for range 4 {
		state := w.state()
		before := clone(state.Layout)
		plan := entryplan.Next(state, w.settings())
		w.unchanged(before, state.Layout)
		if plan.Overflow != nil {
			w.t.Fatalf("overflow of %v", plan.Overflow)
		}
		if len(plan.Changes) == 0 {
			clear(w.expired)
			return
		}
		for _, change := range plan.Changes {
			called := w.called()
			if w.write(change) {
				w.t.Fatalf("object %d was not planned from what is stored", change.Index)
			}
			for name := range w.called() {
				delete(called, name)
			}
			if len(called) > 0 && w.canServe {
				w.t.Fatalf("after object %d was written, %v are not called for, and were before", change.Index, slices.Collect(maps.Keys(called)))
			}
		}
		for name, e := range w.sets { // the leader has written for those that are there
			if _, _, ok := w.stored.Locate(e.Name); ok {
				delete(w.unknown, name)
			}
		}
	}
	w.t.Fatal("the plan never comes to rest")
}

// check complains about anything that is not as it should be once the plan is at
// rest. The entries of before were present when the leader began.
func (w *world) check(before entryplan.Layout) {
	w.t.Helper()
	wanted := map[string]entryplan.Entry{}
	for _, e := range w.state().Wanted {
		if !w.refused[e.Name] {
			wanted[e.Name] = e
		}
	}
	places := map[string]int{}
	for _, c := range w.stored {
		if c == nil {
			continue
		}
		if err := whole(c); len(c.Webhooks) > 0 && err != nil {
			w.t.Fatal(err)
		}
		names := podEntryNames(c)
		if len(names) > entryplan.MaxEntries {
			w.t.Fatalf("%s holds %d entries", c.Name, len(names))
		}
		if len(names) == 0 && len(c.Webhooks) > 0 {
			w.t.Fatalf("%s holds the barrier alone", c.Name)
		}
		for _, name := range names {
			places[name]++
			if strings.Contains(name, ".provisional.") {
				continue
			}
			if _, ok := wanted[name]; !ok && (w.refused[name] || !w.behind && w.isSettled(name, entryplan.Touched(c)[name])) {
				w.t.Fatalf("%s still holds %s", c.Name, name)
			}
		}
	}
	provisional := w.stored.Provisionals()
	for name, e := range wanted {
		_, _, stood := before.Locate(name)
		if places[name] > 0 {
			for own := range entryplan.ProvisionalNames([]entryplan.Entry{e}) {
				if slices.Contains(provisional, own) {
					w.t.Fatalf("%v stands, and a provisional one for the same Pods as well", &e)
				}
			}
		}
		switch places[name] {
		case 1:
			w.checkEntry(&e, before)
		case 0:
			if stood || w.canServe {
				w.t.Fatalf("%v stands nowhere; it stood before: %v", &e, stood)
			}
		default:
			w.t.Fatalf("%v stands in %d objects", &e, places[name])
		}
	}
}

func (w *world) checkEntry(e *entryplan.Entry, before entryplan.Layout) {
	w.t.Helper()
	i, holds := w.stored.Holds(*e, w.settings())
	if !holds {
		w.t.Fatalf("%v is not as it should be", e)
	}
	path := pathOf(w.stored, e.Name)
	if w.claimed[e.Name] && path != "/pods/fresh" {
		w.t.Fatalf("%v was claimed and is on %s", e, path)
	}
	for _, member := range e.Members {
		if w.unknown[member] {
			w.t.Fatalf("%v is there, and the claim of %s is open", e, member)
		}
	}
	was, _, stood := before.Locate(e.Name)
	touched, widened := entryplan.Touched(w.stored[i])[e.Name]
	settled := w.isSettled(e.Name, touched)
	if stood && was == i && widened && (w.behind || !settled) && pathOf(before, e.Name) == "/pods/fresh" && path != "/pods/fresh" {
		w.t.Fatalf("%v left the fresh path before it had settled", e)
	}
	if settled && !w.behind && path != "/pods" {
		w.t.Fatalf("%v has settled and is on %s", e, path)
	}
}

// Whatever happens, planning comes to rest, and then every wanted entry is present
// once, as it should, and nothing else for longer than it has to.
func TestPlanningComesToRestWhateverHappens(t *testing.T) {
	const events = 80
	for seed := range uint64(rounds.Of(100, 10)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range events {
				w.happen()
				if w.rng.IntN(3) == 0 {
					w.clock++
					before := w.stored
					w.lead()
					w.check(before)
				}
			}
		})
	}
}
