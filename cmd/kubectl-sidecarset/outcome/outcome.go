// Package outcome says what a change of a SidecarSet will do to running Pods. It asks the
// packages of the leader about each Pod. It has no client and no clock.
package outcome

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/rollout"
)

// Input is everything that an outcome depends on. It is not changed.
type Input struct {
	// Old is the stored SidecarSet, nil if there is none, and New what it becomes. Both are of
	// the hub version and defaulted.
	Old, New map[string]any
	// Before has all SidecarSets with Old, and After those with New.
	Before, After *clusterview.View
	// Revisions are the ControllerRevisions of SidecarSets.
	Revisions []*appsv1.ControllerRevision
	// Pods are all that Old or New may select.
	Pods []*corev1.Pod
	// Node returns the state of a Node. It is asked for Pods whose native sidecars restart.
	Node func(name string) (inplace.Node, error)
	// Resizes: the API server has the subresource pods/resize.
	Resizes bool
}

// Outcome is what becomes of a running Pod.
type Outcome string

// The outcomes, in the order of Plan.Pods.
const (
	InPlace    Outcome = "InPlace"    // it gets other images
	Resize     Outcome = "Resize"     // it gets other resources, and perhaps other images
	HotUpgrade Outcome = "HotUpgrade" // a second container takes over
	Recreate   Outcome = "Recreate"   // only a new Pod gets the revision
	Blocked    Outcome = "Blocked"    // it is not written now
	Kept       Outcome = "Kept"       // the update strategy keeps it as it is
	Deselected Outcome = "Deselected" // it falls out of the selection
	Selected   Outcome = "Selected"   // it comes into the selection, and has no sidecars until it is recreated
	Uninjected Outcome = "Uninjected" // it was selected before, and has no sidecars until it is recreated
)

var outcomes = []Outcome{InPlace, Resize, HotUpgrade, Recreate, Blocked, Kept, Deselected, Selected, Uninjected}

// Group is Pods with one outcome, for one reason.
type Group struct {
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
	Pods    int     `json:"pods"`
	// First names the first Pods, as namespace/name.
	First []string `json:"first"`
}

// Plan is what becomes of running Pods.
type Plan struct {
	Pods []Group `json:"pods,omitempty"`
	// Current Pods have the revision already.
	Current int `json:"current"`
	// Partition is how many of the Pods that could be updated updateStrategy.partition keeps as they are.
	Partition int `json:"partition,omitempty"`
	// Refused are Pods whose replacements the webhook would refuse; Message says why.
	Refused []Group `json:"refused,omitempty"`
}

// pod is one Pod of the outcome.
type pod struct {
	*corev1.Pod
	record  *podstate.Summary
	refused error // of the Pod that would be created in its place
	outcome Outcome
	reason  string
	message string

	updated bool // it has the SidecarSet, perhaps with an earlier revision
}

func (p *pod) name() string { return p.Namespace + "/" + p.Name }

// planner is one run of Of.
type planner struct {
	Input
	*explain.Updater
	now  time.Time
	pods []*pod
}

// Of returns what becomes of running Pods if Old becomes New.
func Of(ctx context.Context, in Input) (*Plan, error) {
	f := &planner{Input: in, now: in.After.Now.Truncate(time.Second)}
	if err := f.readRevisions(); err != nil {
		return nil, err
	}
	out := &Plan{}
	for _, live := range in.Pods {
		p := &pod{Pod: live, record: podstate.FromPod(live)}
		is, err := f.judge(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("Pod %s: %w", p.name(), err)
		}
		if is {
			f.pods = append(f.pods, p)
		}
	}
	slices.SortFunc(f.pods, func(a, b *pod) int { return cmp.Compare(a.name(), b.name()) })
	out.Partition = f.keep()
	for _, p := range f.pods {
		if p.message == "" && p.reason != "" {
			meaning, remedy := explain.Blocked(inplace.Reason(p.reason))
			p.message = meaning + "; " + remedy
		}
		if p.outcome == "" {
			out.Current++
		} else {
			out.Pods = add(out.Pods, p, p.reason, p.message)
		}
		if p.refused != nil {
			out.Refused = add(out.Refused, p, "", p.refused.Error())
		}
	}
	slices.SortStableFunc(out.Pods, func(a, b Group) int {
		return cmp.Or(cmp.Compare(slices.Index(outcomes, a.Outcome), slices.Index(outcomes, b.Outcome)), cmp.Compare(b.Pods, a.Pods))
	})
	return out, nil
}

// readRevisions compares the revisions that ControllerRevisions record with the new one. The leader
// has recorded the stored revision before it sees another one.
func (f *planner) readRevisions() error {
	name := hub.NameOf(f.New)
	compiled, usable := f.After.Snapshot.Get(name)
	if !usable {
		return f.After.Unusable[name]
	}
	owner := revision.Owner{Name: name, UID: compiled.Set.UID}
	history := revision.NewHistory(f.Revisions, owner)
	if f.Old != nil {
		spec, _ := f.Old["spec"].(map[string]any)
		data, err := revision.Data(spec)
		if err != nil {
			return err
		}
		found, number := history.Find(data)
		if stored, err := inject.Compile(f.Old); found == nil && err == nil { // with an error, it injects nothing
			owner.Hash, owner.HashWithoutImage = stored.Hash, stored.HashWithoutImage
			history = history.With(revision.New(owner, "", data, 0, number))
		}
	}
	updater, err := explain.NewUpdater(f.After, compiled, history)
	f.Updater = updater
	return err
}

// judge finds the outcome of a Pod as far as it does not depend on other Pods; it is "" for a Pod with
// the revision. is is false for a Pod that the change does not concern.
func (f *planner) judge(ctx context.Context, p *pod) (is bool, err error) {
	if !p.record.Active || p.record.TooLarge {
		return false, nil
	}
	name := podstate.MakeName(f.Compiled.Name())
	var selects [2]bool
	var sidecarSets []*inject.Compiled
	for i, w := range []*clusterview.View{f.Before, f.After} {
		if sidecarSets, err = w.Selecting(ctx, p.Namespace, labels.Set(p.Labels)); err != nil {
			return false, err
		}
		selects[i] = slices.ContainsFunc(sidecarSets, func(p *inject.Compiled) bool { return p.Name() == f.Compiled.Name() })
	}
	_, listed := p.record.Injection(name)
	if !selects[1] {
		p.outcome, p.message = Deselected, "keep their sidecars, and are not updated any more"
		return selects[0] && listed, nil
	}
	count := f.Revision.Count(p.record, f.now.Unix())
	p.updated = count&inplace.Matched != 0
	if !p.updated && (count&inplace.Uninjected == 0 || !f.After.Excluded.Eligible(p.Namespace, p.record.Facts.Mirror)) {
		return false, nil
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.Pod)
	if err != nil {
		return false, err
	}
	decision, err := f.After.Decide(ctx, p.Namespace, object) // about the Pod that would be created in its place
	if err != nil {
		return false, err
	}
	p.refused = decision.Refused
	if p.updated {
		f.judgeUpdate(p)
	} else {
		p.outcome, p.message = Selected, "no sidecars until they are recreated"
		if selects[0] {
			p.outcome, p.reason = Uninjected, f.Revision.WhyUninjected(p.record)
		}
		for _, skip := range decision.Plan.Skipped {
			if skip.SidecarSet == f.Compiled.Name() {
				p.message = "no sidecars, not when they are recreated either: " + string(skip.Reason)
			}
		}
	}
	return true, nil
}

// judgeUpdate finds how a Pod that has the SidecarSet can get the revision.
func (f *planner) judgeUpdate(p *pod) {
	u, fields, err := f.Update(p.Pod, f.Node, f.now)
	v := u.Verdict
	if err != nil {
		v, p.message = inplace.Verdict{Method: inplace.LeaveAlone, Reason: inplace.UpdateImpossible}, err.Error()
	}
	if v.Method == inplace.Resize && !f.Resizes {
		v = inplace.Verdict{Method: inplace.Recreate, Reason: inplace.ResizeUnsupported}
	}
	p.reason = string(v.Reason)
	switch {
	case v.Method == inplace.Current:
	case v.Method == inplace.Recreate:
		p.outcome = Recreate
		p.message = cmp.Or(strings.Join(fields, "; "), u.Message)
	case v.Reason != "":
		p.outcome = Blocked
	case v.Method == inplace.Resize:
		p.outcome = Resize
	case slices.ContainsFunc(u.Changes, f.isHot):
		p.outcome = HotUpgrade
	default:
		p.outcome = InPlace
	}
}

// isHot reports whether a container is one of a pair.
func (f *planner) isHot(change podstate.Change) bool {
	for i := range f.Compiled.Set.Spec.Containers {
		if c := &f.Compiled.Set.Spec.Containers[i]; c.IsHotUpgrade() && slices.Contains(c.PodContainerNames(), change.Container) {
			return true
		}
	}
	return false
}

// keep finds the Pods that the update strategy keeps as they are whatever their state is, and returns
// how many of the others the partition keeps.
func (f *planner) keep() int {
	strategy := rollout.NewStrategy(f.Compiled.Set)
	total, updatable := 0, 0
	for _, p := range f.pods {
		if p.updated {
			total++
		}
	}
	for _, p := range f.pods {
		switch {
		case !slices.Contains([]Outcome{InPlace, Resize, HotUpgrade}, p.outcome):
		case !strategy.Updates():
			p.outcome, p.reason, p.message = Kept, "NotUpdate", "no Pod is written: updateStrategy.type is NotUpdate"
		case strategy.IsPaused():
			p.outcome, p.reason, p.message = Kept, "Paused", "no Pod is written: updateStrategy.paused is true"
		case !strategy.Selects(labels.Set(p.Labels)):
			p.outcome, p.reason, p.message = Kept, "Unselected", "updateStrategy.selector does not select them"
		case strategy.Allowed(total) == 0 && p.record.Ready:
			p.outcome, p.reason, p.message = Kept, "Budget", "updateStrategy.maxUnavailable allows no Pod to be down"
		default:
			updatable++
		}
	}
	return min(strategy.Kept(total), updatable)
}

// maxNames is how many Pods a Group names.
const maxNames = 3

// add adds a Pod to its group. Groups of Pods that differ only in what blocks them have the message
// of the first Pod.
func add(groups []Group, p *pod, reason, message string) []Group {
	at := slices.IndexFunc(groups, func(g Group) bool {
		return g.Outcome == p.outcome && g.Reason == reason && (g.Message == message || p.outcome == Blocked)
	})
	if at < 0 {
		at, groups = len(groups), append(groups, Group{Outcome: p.outcome, Reason: reason, Message: message})
	}
	g := &groups[at]
	if g.Pods++; len(g.First) < maxNames {
		g.First = append(g.First, p.name())
	}
	return groups
}
