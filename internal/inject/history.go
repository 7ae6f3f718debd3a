package inject

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// CompileRevision prepares the revision that a ControllerRevision records for
// injection in place of the current one. The result selects no Pods by itself;
// it has the name and metadata of current.
func CompileRevision(current *Compiled, recorded *appsv1.ControllerRevision) (*Compiled, error) {
	head, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&metav1.PartialObjectMetadata{TypeMeta: current.Set.TypeMeta, ObjectMeta: current.Set.ObjectMeta})
	if err != nil {
		return nil, err
	}
	object, err := revision.Restore(head, recorded)
	if err != nil {
		return nil, err
	}
	p, err := compileContent(object)
	if err != nil {
		return nil, fmt.Errorf("compiling ControllerRevision %s/%s: %w", recorded.Namespace, recorded.Name, err)
	}
	p.Selector, p.NamespaceSelector = labels.Nothing(), labels.Nothing()
	p.recordedAs = recorded.Name
	return p, nil
}

// historyRule says which Pods are given a recorded revision.
type historyRule struct {
	reference revision.Reference
	held      bool // all Pods, if the revision is recorded and differs, until the current one is stable
	always    bool
	selector  labels.Selector // nil, or Pods that it does not select get the recorded one
	share     float64         // of the other Pods that get the recorded one
	invalid   *InvalidError   // why chance cannot decide
}

// Refers returns the recorded revision that new Pods may get: the one that injectionStrategy.revision
// names, or with the annotation sidecarset.io/new-pods the stable one, if that is not the current one;
// false if there is none.
func (p *Compiled) Refers() (revision.Reference, bool) {
	if p.history == nil {
		return revision.Reference{}, false
	}
	return p.history.reference, true
}

// Bypassed reports whether no new Pod gets this revision, because all get the revision that
// injectionStrategy.revision names.
func (p *Compiled) Bypassed() bool { return p.history != nil && p.history.always && !p.history.held }

// IsHeld reports whether new Pods get the revision that Refers returns until this revision is stable. If
// that revision is not recorded, cannot be used or has the same hash, they get this revision.
func (p *Compiled) IsHeld() bool { return p.history != nil && p.history.held }

// newHistoryRule reads injectionStrategy.revision and the fields of the update strategy that it depends
// on, and the annotation sidecarset.io/new-pods; nil where only the current revision, which is recorded
// under that name, is injected.
func newHistoryRule(set *appsv1beta1.SidecarSet, current string) *historyRule {
	reference, ok := revision.ReferenceOf(set.Spec.InjectionStrategy.Revision)
	stable := set.Status.StableRevision
	switch {
	case ok:
	case set.Annotations[appsv1beta1.AnnotationNewPods] == appsv1beta1.StableNewPods && stable != "" && stable != current:
		return &historyRule{reference: revision.Reference{Name: stable}, held: true, always: true}
	default:
		return nil
	}
	update := &set.Spec.UpdateStrategy
	partial := set.Spec.InjectionStrategy.Revision.Policy == appsv1beta1.PartialSidecarSetInjectRevisionPolicy
	r := &historyRule{reference: reference, always: update.Paused || !partial}
	if r.always {
		return r
	}
	var err error
	if update.Selector != nil {
		if r.selector, err = metav1.LabelSelectorAsSelector(update.Selector); err != nil {
			r.invalid = &InvalidError{SidecarSet: set.Name, Field: "spec.updateStrategy.selector", Problem: err.Error()}
			return r
		}
	}
	if r.share, err = partitionShare(update.Partition); err != nil {
		r.invalid = &InvalidError{SidecarSet: set.Name, Field: "spec.updateStrategy.partition", Problem: err.Error()}
	}
	return r
}

// partitionShare is the share of new Pods that a partition keeps old. It is 0 if the
// partition is a number, because that number does not count new Pods.
func partitionShare(partition *intstr.IntOrString) (float64, error) {
	if partition == nil || partition.Type == intstr.Int {
		return 0, nil
	}
	digits, isPercentage := strings.CutSuffix(partition.StrVal, "%")
	percent, err := strconv.Atoi(digits)
	if !isPercentage || err != nil {
		return 0, errors.New(strconv.Quote(partition.StrVal) + ` is neither a number nor a percentage such as "10%"`)
	}
	return float64(percent) / 100, nil
}

// resolve turns a candidate into a target: of the recorded revision if that is to be
// injected, of the current one otherwise.
func (c Candidate) resolve(pod *PodView, choices map[string]string) target {
	t := target{Compiled: c.Current, paused: c.Current.Set.Spec.InjectionStrategy.Paused}
	rule := c.Current.history
	if rule == nil || t.paused {
		return t
	}
	if rule.held {
		if c.History != nil && c.History.Hash != c.Current.Hash {
			t.Compiled, t.heldBack = c.History, c.Current
		}
		return t
	}
	old := rule.always || rule.selector != nil && !rule.selector.Matches(labels.Set(pod.Labels))
	if !old && rule.invalid != nil {
		t.problem = rule.invalid
		return t
	}
	if !old {
		t.choice = c.choose(choices[t.Name()])
		old = t.choice != podstate.ChoseCurrent
	}
	switch {
	case !old:
	case c.History == nil:
		t.problem = &RevisionError{SidecarSet: t.Name(), Reference: rule.reference.String()}
	default:
		t.Compiled = c.History
	}
	return t
}

// choose lets chance decide, unless it has done so for this Pod before. The API
// server may call several times, and each call has a draw of its own.
//
// The Pod's creator can have written the earlier choice. An enforced SidecarSet
// accepts it only if chance could have chosen either revision. This gives away
// nothing: if chance decides, the creator can also create the Pod again until it
// gets the wanted revision.
func (c Candidate) choose(before string) string {
	recorded := "?" // chosen, and missing: no name of a revision
	if c.History != nil {
		recorded = c.History.recordedAs
	}
	share := c.Current.history.share
	decided := c.Current.enforced && (share <= 0 || share >= 1)
	if !decided && (before == podstate.ChoseCurrent || before == recorded) {
		return before
	}
	if c.Draw < share {
		return recorded
	}
	return podstate.ChoseCurrent
}
