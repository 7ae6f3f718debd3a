package entries

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/status"
	"k8s.io/apimachinery/pkg/types"
)

// Board holds what the leader knows of each SidecarSet's readiness, and tells
// what changes. It is safe for concurrent use.
type Board struct {
	mu      sync.Mutex
	known   map[string]boardEntry
	changed []func(sidecarSet string)
}

// boardEntry is about one generation of one object. The name alone does not say
// which: a SidecarSet that is deleted and created again has generation 1 again.
type boardEntry struct {
	uid        types.UID
	generation int64
	readiness  status.Readiness
}

func newBoard() *Board {
	return &Board{known: map[string]boardEntry{}}
}

// Of returns what is known about a generation of a SidecarSet; nil if nothing is.
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

// replace sets what is known of all SidecarSets and tells what differs.
func (b *Board) replace(next map[string]boardEntry) {
	b.mu.Lock()
	var differ []string
	for name, entry := range next {
		if b.known[name] != entry {
			differ = append(differ, name)
		}
	}
	b.known = maps.Clone(next)
	changed := b.changed
	b.mu.Unlock()
	for _, name := range differ {
		for _, tell := range changed {
			tell(name)
		}
	}
}

// Readiness returns what the leader knows of each SidecarSet. Call it after
// AddLeader.
func (w *Keeper) Readiness() *Board { return w.leader.board }

// judge says of each SidecarSet whether the next Pod will be injected. It
// reports whether that may change by time alone.
func (l *leader) judge(ctx context.Context, v *view) bool {
	l.calls.ask(l.barrierToAsk())
	common, blocked := l.commonObstacle(ctx, v)
	next := make(map[string]boardEntry, len(v.programs))
	waiting := v.waiting || blocked
	for _, program := range v.programs {
		readiness := common
		if !blocked {
			readiness = l.readiness(v, program)
		}
		if readiness.Ready && l.probe != nil {
			if problem := l.probe.check(v.catalog, program); problem != nil {
				readiness = *problem
			}
		}
		waiting = waiting || !readiness.Ready
		next[program.Name()] = boardEntry{program.Set.UID, program.Set.Generation, readiness}
	}
	if l.probe != nil {
		l.probe.forget(v.programs)
	}
	l.board.replace(next)
	return waiting
}

func no(reason, message string) status.Readiness {
	return status.Readiness{Reason: reason, Message: message}
}

func unsure(reason, message string) status.Readiness {
	return status.Readiness{Reason: reason, Message: message, Unsure: true}
}

// commonObstacle is what keeps every SidecarSet from being ready.
func (l *leader) commonObstacle(ctx context.Context, v *view) (status.Readiness, bool) {
	if v.rival != nil {
		return no(appsv1beta1.ReasonAnotherInjector, v.rival.Message()), true
	}
	if !v.served {
		return no(appsv1beta1.ReasonNoReplica, "No replica of the operator answers webhooks: selected Pods are refused, or created without sidecars where "+
			appsv1beta1.AnnotationFailurePolicy+" is Ignore. Look at the operator's Pods in namespace "+l.webhooks.options.Settings.Namespace+"."), true
	}
	// Where other processes serve the webhooks, a call that was answered proves more
	// than the certificate of this one.
	if err := l.webhooks.options.Certificate(ctx); err != nil && (l.webhooks.options.ServesWebhooks || !l.calls.proven(v.now)) {
		reason := appsv1beta1.ReasonCertificateNotTrusted
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			reason = appsv1beta1.ReasonCertificateExpired
		}
		return no(reason, "API servers do not accept the certificate of the webhooks: "+err.Error()), true
	}
	if problem := l.calls.problem(l.webhooks.options.Settings.Namespace, v.now); problem != nil {
		return *problem, true
	}
	return status.Readiness{}, false
}

// barrierToAsk is the configuration by whose barrier API servers are asked whether
// their calls are answered; "" if there is none.
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

// readiness judges one SidecarSet.
func (l *leader) readiness(v *view, program *inject.Program) status.Readiness {
	set := program.Set
	planned := l.planned[set.Name]
	if planned.err != nil {
		return no(appsv1beta1.ReasonEntryRefused, "The selectors make no webhook entry: "+planned.err.Error())
	}
	entry := planned.entry.Name
	if known, refused := l.refused[entry]; refused {
		return no(appsv1beta1.ReasonEntryRefused, "The API server does not take the webhook entry: "+known.message)
	}
	if planned.nothing != "" {
		return no(appsv1beta1.ReasonNothingSelected, planned.nothing+".")
	}
	if set.Spec.InjectionStrategy.Paused {
		return no(appsv1beta1.ReasonPaused, "New Pods are not injected while spec.injectionStrategy.paused is true.")
	}
	if planned.refuse != nil {
		return no(appsv1beta1.ReasonInvalid, "Selected Pods are refused: "+planned.refuse.Error())
	}
	if problem := l.inForce(v, program); problem != nil {
		return *problem
	}
	return ready(l.coarse(v, set.Name))
}

// coarse says whether a SidecarSet has no entry of its own.
func (l *leader) coarse(v *view, sidecarSet string) bool {
	return v.overflow != nil && slices.Contains(v.overflow.Members, sidecarSet)
}

// inForce says why API servers do not call us for the Pods of a SidecarSet; nil
// if they do. The one entry of static mode is the administrator's: that it is
// there is all that is looked at.
func (l *leader) inForce(v *view, program *inject.Program) *status.Readiness {
	if l.webhooks.options.Static {
		return l.staticEntry(v, program)
	}
	entry := l.entryOf(v, program.Name())
	placed, ok := l.placed[entry]
	if !ok || v.layout[placed.configuration] == nil {
		return new(no(appsv1beta1.ReasonEntryMissing, l.whyMissing(v, entry)))
	}
	name := v.layout[placed.configuration].Name
	if l.edits[placed.configuration].goOn(v.now) {
		return new(no(appsv1beta1.ReasonEntryMissing, editedMessage(name)))
	}
	needs, ok := l.required(v, program.Name())
	if !ok || !l.webhooks.barrier.passed(name, needs.serial) {
		message := "The webhook entry is written; not every API server is known to use it yet."
		if problem := v.unproven[placed.configuration]; problem != "" {
			message += " " + problem
		} else if v.problem != nil {
			message += " " + v.problem.Error()
		}
		return new(unsure(appsv1beta1.ReasonNotInForce, message))
	}
	return nil
}

// staticEntry says what is wrong with the one entry that an administrator keeps.
func (l *leader) staticEntry(v *view, program *inject.Program) *status.Readiness {
	const missing = "No MutatingWebhookConfiguration has new Pods sent to the operator, and with --pod-webhook=static it keeps none itself. " +
		"Apply config/overlays/static, or run it with --pod-webhook=exact."
	switch stands, known := l.webhooks.options.Rivals.StaticEntry(); {
	case !known:
		return new(unsure(appsv1beta1.ReasonEntryMissing, "The webhook configurations have not been read yet."))
	case !stands:
		return new(no(appsv1beta1.ReasonEntryMissing, missing))
	}
	// That entry is on /pods, where replicas answer from a snapshot that they trust.
	trust := l.webhooks.options.Trust + l.webhooks.options.Trust/2
	if claim := l.claims[program.Name()]; !claim.known && v.now.Sub(claim.since) < trust {
		v.wakeAfter(trust - v.now.Sub(claim.since))
		return new(unsure(appsv1beta1.ReasonNotInForce, fmt.Sprintf("A replica may trust an older snapshot of the SidecarSets for up to %s.", trust)))
	}
	return nil
}

// whyMissing says why an entry is not what it has to be.
func (l *leader) whyMissing(v *view, entry string) string {
	i, _, stands := v.layout.Locate(entry)
	if problem := l.noObject(v.layout); problem != "" {
		return problem
	}
	switch {
	case stands && (v.paced[i] || l.edits[i].goOn(v.now)):
		return editedMessage(v.layout[i].Name)
	case v.problem != nil:
		return "The webhook entry for the selected Pods is not written: " + v.problem.Error()
	}
	return "The webhook entry for the selected Pods is not written yet."
}

// edits are how often somebody else has changed what stood in a configuration
// object.
type edits struct {
	count int
	last  time.Time
}

// Who changes an object as often as that, with no longer pause, is a program that
// goes on. What it changes is then not in force, though it stands in between.
const (
	editsOfAProgram = 10
	pauseOfEdits    = time.Minute
)

func (e *edits) note(now time.Time) {
	if now.Sub(e.last) >= pauseOfEdits {
		e.count = 0
	}
	e.count++
	e.last = now
}

func (e *edits) goOn(now time.Time) bool {
	return e.count >= editsOfAProgram && now.Sub(e.last) < pauseOfEdits
}

func editedMessage(configuration string) string {
	return fmt.Sprintf("Somebody edits the webhook entries in MutatingWebhookConfiguration %s again and again, and the operator restores them. "+
		"See who does (kubectl get mutatingwebhookconfiguration %[1]s --show-managed-fields -o yaml), and have it leave them alone, or use --pod-webhook=static.", configuration)
}

func ready(coarse bool) status.Readiness {
	r := status.Readiness{Ready: true, Reason: appsv1beta1.ReasonReady, Message: "The next Pod that is selected will be injected."}
	if coarse {
		r.Reason = appsv1beta1.ReasonCoarseEntry
		r.Message += fmt.Sprintf(" There is no room for an entry of its own, so that API servers call the operator for all Pods: there are more than %d different selectors, or very large ones. Let SidecarSets share selectors, or shorten theirs.",
			entryplan.MaxConfigurations*entryplan.MaxEntries-1)
	}
	return r
}
