package protocol

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/rounds"
)

var (
	runs     = flag.Uint64("protocol.runs", 50, "how many seeds each protocol is tried with")
	mistakes = flag.Uint64("protocol.mistakes", 400, "how many seeds may go by until a mistake is found")
	first    = flag.Uint64("protocol.seed", 0, "the first seed")
)

const (
	// storageFor is how long an API server may take between the review of a SidecarSet
	// and its write.
	storageFor = 90 * time.Second
	// checkInterval is the pause between two checks of a replica.
	checkInterval  = 10 * time.Second
	provisionalFor = time.Second

	// maxDrift is the largest relative error of a clock's rate. Linux slews clocks by 0.05
	// percent, and by 10 percent at most if a time daemon asks for it. W leaves room for 5
	// percent on both sides: 120 s / 1.05 is 114.3 s; 20 s / 0.95 is 21.1 s; 90 s + 21.1 s is
	// 111.1 s.
	maxDrift = 0.05
)

const (
	bothClocks = iota
	wallOnly
	monoOnly
	largerClock
)

// rules are a protocol, and its mistakes.
type rules struct {
	trust     time.Duration // how long a replica trusts its snapshot, from the beginning of a check
	window    time.Duration // how long an entry stays on the fresh path after the last write for an admission
	admission time.Duration // how long a recorded name counts for a SidecarSet that is stored now
	stall     time.Duration // how long a watch is silent at most
	clock     int           // the clock by which a replica measures its trust

	// How hard the faults are.
	stopInCheck float64 // percent of checks in an ambush during which the replica is stopped
	setBack     bool    // a machine that was suspended has its wall clock set back by as much
	mixedFlags  bool    // every second process excludes other namespaces, as while flags are rolled out

	// Repairs of the design, or of the code.
	checkReplacements bool // a replica checks before it replaces what an earlier call has injected

	// Mistakes.
	orphanAtOnce     bool
	neverDoubt       bool
	neverWarn        bool
	provisionalFirst bool
	orderIsEnough    bool
	anewBlindly      bool
	freshIsPlain     bool
	expireBlindly    bool
	leaderWall       bool
	noClaim          bool
	readyWhenPlaced  bool
	readyIsKnown     bool
	countLate        bool
	noLookUp         bool
	noRenewal        bool
	noClosing        bool

	namesNothing       bool
	namesAtLast        bool
	leaderNamesNothing bool
	namesWithoutTrust  bool
	namesForgotten     bool
	lastContent        bool
	oneObject          bool
	skipsNames         bool
}

// certifying is the protocol of docs/design/0008.
func certifying() rules {
	return rules{trust: entryplan.Trust, window: storageFor + entryplan.Trust*3/2, admission: storageFor, stall: 250 * time.Second, checkReplacements: true, stopInCheck: 2}
}

const (
	workFor = 200 * time.Second
	// restFor is the longest time until all entries are on /pods: W, another W for orphans, and
	// 10 percent for clocks.
	restFor = 280 * time.Second
)

// live runs a world with clients and maybe faults, from a seed.
func live(seed uint64, r rules, faults, tracing bool) *world {
	w := newWorld(seed, r, faults)
	workFor := workFor
	if w.temper.ambush {
		workFor *= 2
	}
	w.tracing = tracing
	for at := w.upTo(3 * time.Second); at < workFor; {
		w.after(at, w.client)
		at += w.between(50*time.Millisecond, 2*time.Second)
		if w.chance(20) {
			at += w.upTo(30 * time.Second)
		}
		if w.temper.ambush {
			at += w.upTo(60 * time.Second)
		}
	}
	for at := time.Duration(0); faults && at < workFor+100*time.Second; at += w.between(time.Second, 10*time.Second) {
		w.after(at, w.misfortune)
	}
	if faults {
		w.run(workFor + 120*time.Second)
	} else {
		w.run(workFor + restFor)
	}
	return w
}

// client is one random action of a user.
func (w *world) client() {
	name := fmt.Sprint("set-", w.rng.IntN(w.temper.names))
	switch roll := w.rng.IntN(100); {
	case roll < 35:
		w.admit(name, false)
	case roll < 65:
		w.admit(name, true)
	case roll < 72 && w.stored.sets[name] != nil:
		w.note("a client deletes %s", name)
		w.deleteSet(name)
	case roll < 78 && w.stored.sets[name] != nil:
		w.note("a client replaces %s", name)
		w.deleteSet(name)
		w.after(w.upTo(100*time.Millisecond), func() { w.admit(name, false) })
	default:
		w.anyPod()
	}
}

func (w *world) anyPod() {
	w.createPod(fmt.Sprint([]string{"app-", "tier-"}[w.rng.IntN(2)], w.rng.IntN(w.temper.values)))
}

// misfortunes is how many kinds of faults there are.
const misfortunes = 8

// misfortune is one fault.
func (w *world) misfortune() {
	p := w.processes[len(w.processes)-1-w.rng.IntN(min(3, len(w.processes)))]
	kind := w.rng.IntN(misfortunes)
	if !w.temper.faults[kind] || p.ended {
		return
	}
	switch kind {
	case 0, 1:
		if p.paused > w.now {
			return
		}
		d := w.fault(40 * time.Second)
		if kind == 0 {
			w.note("%s is stopped for %v", p.name, d)
			p.paused = w.now + d
		} else {
			if w.rules.setBack { // neither clock shows this suspension, so it must not be longer: see docs/design/0008
				d = min(d, w.rules.window-w.rules.trust*3/2)
				p.set -= d
			}
			w.note("the machine of %s is suspended for %v", p.name, d)
			p.paused = w.now + d
			p.lost += d
		}
		for range 8 { // in the last second before the process runs again
			w.after(d-min(d, w.upTo(time.Second)), w.anyPod)
		}
	case 2:
		p.set += w.upTo(20*time.Minute) - 10*time.Minute
		w.note("the clock of %s is set", p.name)
	case 3:
		w.crash(p)
	case 4:
		d := w.fault(60 * time.Second)
		f := w.followers[w.rng.IntN(len(w.followers))]
		w.note("the watch of %s stalls for %v", f.name, d)
		f.stall(d)
	case 5:
		w.note("%s lists SidecarSets again", p.name)
		p.relistSets(w.upTo(5 * time.Second))
	case 6:
		if s := w.servers[w.rng.IntN(len(w.servers))]; !s.down {
			s.restart(w.upTo(30 * time.Second))
		}
	case 7:
		w.elect()
	}
}

// crash ends a process, and starts another one. If the process led, another process leads later.
func (w *world) crash(p *process) {
	if p.ended {
		return
	}
	w.note("%s crashes", p.name)
	p.ended = true
	for _, f := range p.watches {
		f.ended = true
	}
	w.followers = slices.DeleteFunc(w.followers, func(f *follower) bool { return f.ended })
	w.addProcess()
	if p.leader != nil && !p.leader.ended {
		w.after(w.upTo(17*time.Second), w.elect)
	}
}

// holds fails the test if any of the runs misses a Pod.
func holds(t *testing.T, r rules) {
	t.Helper()
	var total counts
	runs := rounds.Of(*runs, *runs/5)
	for seed := *first; seed < *first+runs; seed++ {
		w := live(seed, r, true, false)
		total.add(w.counts)
		if w.violation != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.violation, story(seed, r))
		}
	}
	t.Logf("%d runs: %+v", runs, total)
}

// story returns the last events of the run with a seed.
func story(seed uint64, r rules) string {
	trace := live(seed, r, true, true).trace
	return strings.Join(trace[max(0, len(trace)-120):], "\n")
}

// Each of these misses a Pod, and the simulation finds it.
func TestTheSimulationFindsEveryBrokenProtocol(t *testing.T) {
	tests := map[string]struct {
		seed  uint64 // the first seed that the test tries: earlier ones find nothing
		wrong func(*rules)
	}{
		"a replica trusts by the clock that people set":            {1856, func(r *rules) { r.clock = wallOnly }},
		"a replica trusts by the clock that stops with machines":   {987, func(r *rules) { r.clock = monoOnly }},
		"a replica trusts by the clock that says more":             {2422, func(r *rules) { r.clock, r.setBack = largerClock, true }},
		"the leader measures by the clock that people set":         {106, func(r *rules) { r.leaderWall = true }},
		"a replica never doubts":                                   {462, func(r *rules) { r.neverDoubt = true }},
		"the window is the trust alone":                            {4, func(r *rules) { r.window = r.trust }},
		"an entry settles without a window":                        {0, func(r *rules) { r.window = 0 }},
		"an orphan goes without being closed":                      {1351, func(r *rules) { r.noClosing = true }},
		"an orphan goes at once":                                   {154, func(r *rules) { r.orphanAtOnce = true }},
		"a provisional entry goes before the real one is there":    {78, func(r *rules) { r.provisionalFirst = true }},
		"a provisional entry goes before the real one is in force": {129, func(r *rules) { r.orderIsEnough = true }},
		"a provisional entry goes though a review has touched it":  {275, func(r *rules) { r.anewBlindly = true }},
		"provisional entries go without a live list":               {16, func(r *rules) { r.expireBlindly = true }},
		"a review does not renew a provisional entry":              {476, func(r *rules) { r.noRenewal = true }},
		"a late SidecarSet counts on its provisional entry":        {6, func(r *rules) { r.countLate = true }},
		"authors are never warned":                                 {5, func(r *rules) { r.neverWarn = true }},
		"the fresh path does not look":                             {0, func(r *rules) { r.freshIsPlain = true }},
		"Ready does not wait for the fresh path":                   {682, func(r *rules) { r.readyWhenPlaced = true }},
		"what was Ready under another leader counts as known":      {19, func(r *rules) { r.readyIsKnown = true }},
		"a later call takes back what an earlier one injected":     {1313, func(r *rules) { r.checkReplacements = false }},
		"the window leaves no time for the trust":                  {654, func(r *rules) { r.window = storageFor }},
		"a leader removes by an old snapshot":                      {16, func(r *rules) { r.noLookUp = true }},
		"a leader does not claim what it sees stored":              {119, func(r *rules) { r.noClaim = true }},
		"reviews record no names":                                  {11, func(r *rules) { r.namesNothing = true }},
		"reviews record names after they put entries on the path":  {78, func(r *rules) { r.namesAtLast = true }},
		"leaders record no names":                                  {23, func(r *rules) { r.leaderNamesNothing = true }},
		"names are enough without trust":                           {178, func(r *rules) { r.namesWithoutTrust = true }},
		"names are forgotten after the trust":                      {36, func(r *rules) { r.namesForgotten = true }},
		"the last review says what a name means":                   {27, func(r *rules) { r.lastContent = true }},
		"a leader counts on names however old they are":            {2422, func(r *rules) { r.admission = time.Hour }},
		"contents do not tell objects of one name apart":           {186, func(r *rules) { r.oneObject = true }},
		"SidecarSets with names are not read":                      {0, func(r *rules) { r.skipsNames = true }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := certifying()
			tc.wrong(&r)
			for seed := max(tc.seed, *first); seed < max(tc.seed, *first)+*mistakes; seed++ {
				if w := live(seed, r, true, false); w.violation != "" {
					t.Logf("seed %d: %s: %s", seed, name, w.violation)
					return
				}
			}
			t.Errorf("%s: no Pod is missed in %d runs", name, *mistakes)
		})
	}
}

func TestNoPodIsMissedWhileReplicasCertifyThemselves(t *testing.T) { holds(t, certifying()) }

func TestNoPodIsMissedWithStoppedReplicasAndClocksSetBack(t *testing.T) {
	r := certifying()
	r.stopInCheck, r.setBack = 30, true
	holds(t, r)
}

// If the leader has other flags than the replica that admits a SidecarSet, the leader does not
// remove the provisional entry.
func TestNoPodIsMissedWhileFlagsAreRolledOut(t *testing.T) {
	r := certifying()
	r.mixedFlags = true
	holds(t, r)
}

// Without faults, each SidecarSet becomes Ready, its entry settles on /pods, and no other entry
// remains.
func TestWithoutFaultsEveryEntrySettles(t *testing.T) {
	for seed := range uint64(20) {
		w := live(seed, certifying(), false, false)
		if w.violation != "" {
			t.Fatalf("seed %d: %s", seed, w.violation)
		}
		if w.counts.refused > 0 || w.counts.warnings > 0 {
			t.Errorf("seed %d: %d Pods were refused, %d authors warned", seed, w.counts.refused, w.counts.warnings)
		}
		for _, problem := range unrest(w) {
			t.Errorf("seed %d: %s", seed, problem)
		}
	}
}

// unrest returns what is not as it must be in the end.
func unrest(w *world) (problems []string) {
	wanted := map[string]bool{}
	for name, s := range w.stored.sets {
		wanted[s.entry.Name] = true
		if s.ready != s.gen {
			problems = append(problems, name+" is not Ready")
		}
	}
	for i, c := range w.stored.configs {
		for at := range c.Webhooks {
			hook := &c.Webhooks[at]
			switch {
			case strings.HasSuffix(hook.Name, ".barrier.sidecarset.io"):
			case i == entryplan.Provisional || !wanted[hook.Name]:
				problems = append(problems, hook.Name+" is left")
			case *hook.ClientConfig.Service.Path != "/pods":
				problems = append(problems, hook.Name+" is still on the fresh path")
			}
			delete(wanted, hook.Name)
		}
	}
	for name := range wanted {
		problems = append(problems, name+" is missing")
	}
	return problems
}
