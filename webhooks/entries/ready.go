package entries

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/readiness"
	"github.com/sidecarset/operator/internal/status"
)

// Board holds what the leader knows of each SidecarSet's readiness, and notifies of
// changes. The zero value knows nothing. It is safe for concurrent use.
type Board struct {
	mu      sync.Mutex
	known   map[string]boardEntry
	changed []func(sidecarSet string)
}

// boardEntry is about one generation of one object. Name and generation do not identify it:
// a SidecarSet that is deleted and created again has generation 1 again.
type boardEntry struct {
	uid        types.UID
	generation int64
	readiness  status.Readiness
}

// Of returns the readiness of a generation of a SidecarSet; nil if it is not known.
func (b *Board) Of(sidecarSet string, uid types.UID, generation int64) *status.Readiness {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.known[sidecarSet]
	if !ok || known.uid != uid || known.generation != generation {
		return nil
	}
	return new(known.readiness)
}

// Notify has changed called with each SidecarSet whose readiness changes from now on.
func (b *Board) Notify(changed func(sidecarSet string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = append(b.changed, changed)
}

// replace sets the readiness of all SidecarSets, and notifies of each that differs. The
// Board keeps next.
func (b *Board) replace(next map[string]boardEntry) {
	b.mu.Lock()
	var differ []string
	for name, entry := range next {
		if b.known[name] != entry {
			differ = append(differ, name)
		}
	}
	b.known = next
	changed := b.changed
	b.mu.Unlock()
	for _, name := range differ {
		for _, tell := range changed {
			tell(name)
		}
	}
}

// judge writes on the board whether the next Pod of each SidecarSet will be injected.
func (l *leader) judge(ctx context.Context, v *view) {
	if l.barrierToAsk() == "" {
		l.calls.forget()
	}
	obstacle := l.installation(ctx, v).Obstacle()
	if obstacle != nil || v.problem != nil {
		v.wakeAfter(soon)
	}
	programs := v.catalog.Programs()
	next := make(map[string]boardEntry, len(programs))
	for _, program := range programs {
		var judged status.Readiness
		if obstacle != nil {
			judged = *obstacle
		} else {
			judged = readiness.Of(l.facts(v, l.promises[program.Name()]))
		}
		if judged.Ready && l.probe != nil {
			if problem := l.probe.check(ctx, v.catalog, program); problem != nil {
				judged = *problem
			}
		}
		if !judged.Ready {
			v.wakeAfter(soon)
		}
		next[program.Name()] = boardEntry{program.Set.UID, program.Set.Generation, judged}
	}
	if l.probe != nil {
		l.probe.forget(programs)
	}
	l.webhooks.board.replace(next)
}

// installation are the facts that concern every SidecarSet.
func (l *leader) installation(ctx context.Context, v *view) readiness.Installation {
	options := &l.webhooks.options
	i := readiness.Installation{
		Namespace: options.Settings.Namespace, Rival: v.rival.Message(), Served: v.served,
		Calls: l.calls.problem(options.Settings.Namespace, v.now),
	}
	// If other processes serve the webhooks, a call that was answered proves more than the
	// certificate of this one.
	if err := options.Certificate(ctx); options.ServesWebhooks || !l.calls.proven(v.now) {
		i.Certificate = err
	}
	return i
}

// barrierToAsk is the configuration by whose barrier API servers are asked whether
// their calls are answered; "" if there is none. It is safe for concurrent use.
func (l *leader) barrierToAsk() string {
	if l.webhooks.options.Static {
		return l.webhooks.options.Rivals.StaticBarrier()
	}
	for _, c := range l.webhooks.store.current() {
		if c != nil && entryplan.Serial(c) > 0 {
			return c.Name
		}
	}
	return ""
}

// facts are the facts that concern one SidecarSet.
func (l *leader) facts(v *view, p *promise) readiness.SidecarSet {
	facts := readiness.SidecarSet{
		Selectors: p.err, Refused: l.refused[p.entry.Name].message, Nothing: p.nothing,
		Paused: p.program.Set.Spec.InjectionStrategy.Paused, Invalid: p.refuse,
	}
	if l.webhooks.options.Static {
		facts.Static = l.staticEntry(v, p)
	} else {
		facts.Entry = l.entryFacts(v, p)
	}
	return facts
}

func (l *leader) entryFacts(v *view, p *promise) readiness.Entry {
	entry := p.servedBy(v.overflow)
	placed, ok := l.places.of(entry)
	if !ok || v.layout[placed.configuration] == nil {
		return l.unwritten(v, entry)
	}
	facts := readiness.Entry{Written: true, Coarse: p.coarse(v.overflow), Problem: v.unproven[placed.configuration]}
	name := v.layout[placed.configuration].Name
	if l.places.edits[placed.configuration].goOn(v.now) {
		facts.Fought, facts.By = name, l.places.edits[placed.configuration].by
	}
	if v.settings != nil {
		e := p.entry
		if facts.Coarse {
			e = *v.overflow
		}
		if n := v.layout.Narrowing(e, v.settings); n.By != "" {
			facts.Narrowed, facts.LeavesAllOut = n.By, leavesAllOut(v.catalog, n)
		}
	}
	if needs, ok := l.required(v, p); ok {
		facts.Proven = l.webhooks.barrier.passed(name, needs.serial)
	}
	if facts.Problem == "" && v.problem != nil {
		facts.Problem = v.problem.Error()
	}
	return facts
}

// leavesAllOut reports whether another program leaves out every Namespace that an entry selects.
func leavesAllOut(catalog *match.Snapshot, n entryplan.Narrowing) bool {
	some := func(selector *metav1.LabelSelector) bool {
		compiled, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return true
		}
		for range catalog.NamespacesWith(compiled) {
			return true
		}
		return false
	}
	return !some(n.To) && some(n.From)
}

// staticEntry has the facts about the one entry that an administrator keeps. Its path is
// /pods, on which replicas answer from a snapshot that they trust.
func (l *leader) staticEntry(v *view, p *promise) *readiness.Static {
	facts := &readiness.Static{Present: l.webhooks.options.Rivals.StaticEntry()}
	if !p.known {
		trust := l.webhooks.options.Trust + l.webhooks.options.Trust/2
		facts.Trust = max(trust-v.now.Sub(p.since), 0)
	}
	if facts.Trust > 0 {
		v.wakeAfter(facts.Trust)
	}
	return facts
}

// unwritten has the facts about an entry that no object has in its right form.
func (l *leader) unwritten(v *view, entry string) readiness.Entry {
	facts := readiness.Entry{NoObject: l.noObject(v.layout)}
	if i, _, present := v.layout.Locate(entry); present && (v.paced[i] || l.places.edits[i].goOn(v.now)) {
		facts.Fought, facts.By = v.layout[i].Name, l.places.edits[i].by
	}
	if v.problem != nil {
		facts.Problem = v.problem.Error()
	}
	return facts
}
