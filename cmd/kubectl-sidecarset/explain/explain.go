// Package explain answers why a Pod has, or a new Pod would get, the sidecars of each SidecarSet,
// and what to do if that is not wanted. The decisions come from the webhook's engine and from
// the leader's rules for running Pods. The package reads no cluster: what it needs of one is in
// its Explainer.
package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
)

// Decision is what one SidecarSet does, in one word.
type Decision string

// The decisions about new Pods, about running Pods, and about both.
const (
	Injects         Decision = "Injects"
	NotReady        Decision = "NotReady"        // API servers may create the Pod without the sidecars
	AlreadyInjected Decision = "AlreadyInjected" // the template says that it has the revision
	Denied          Decision = "Denied"          // the Pod is refused because of this SidecarSet
	PodDenied       Decision = "PodDenied"       // the Pod is refused for another reason

	Current          Decision = "Current"
	Outdated         Decision = "Outdated"
	Altered          Decision = "Altered"    // another program changed the sidecars after the injection
	ByRecord         Decision = "ByRecord"   // the Pod records it; the SidecarSet cannot be read
	Unverified       Decision = "Unverified" // the Pod claims to have it, and no record proves that
	Uninjected       Decision = "Uninjected" // it selects the Pod, which lacks it
	NoLongerSelected Decision = "NoLongerSelected"
	NoSuchSidecarSet Decision = "NoSuchSidecarSet"

	Paused            Decision = "Paused"
	ReplacedByCanary  Decision = "ReplacedByCanary"
	MirrorPod         Decision = "MirrorPod"
	NamespaceExcluded Decision = "NamespaceExcluded"
	NotSelected       Decision = "NotSelected"
	Unusable          Decision = "Unusable" // the operator cannot use the SidecarSet
	Unknown           Decision = "Unknown"  // the labels of the Namespace are not known
)

// Answer is about one SidecarSet and one Pod.
type Answer struct {
	SidecarSet string   `json:"sidecarSet"`
	Decision   Decision `json:"decision"`
	// Revision names the ControllerRevision that the Pod has, or would get; "" if none is
	// known.
	Revision string `json:"revision,omitempty"`
	// Reasons and Remedies say why, and what to do, in sentences. Remedies is empty if there is nothing to do.
	Reasons  []string `json:"reasons,omitempty"`
	Remedies []string `json:"remedies,omitempty"`
	// Mismatches are the terms of the selectors that are not met, for NotSelected and
	// NoLongerSelected.
	Mismatches []Mismatch `json:"mismatches,omitempty"`
	// Near says that a SidecarSet that does not select the Pod comes close to it.
	Near bool `json:"near,omitempty"`

	met int // how many terms that name a value are met
}

// Report has one Answer for each SidecarSet: first those that select the Pod or are in it, then
// the nearest. Its form as JSON is stable.
type Report struct {
	// Kind, Namespace and Name are of the Pod, or of the workload with its template. File is its
	// place, as FILE:LINE.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	File      string `json:"file,omitempty"`
	// Running: the answers are about a Pod that exists. Otherwise they are about the next one.
	Running bool `json:"running"`
	// Denied says why the Pod would not be created; nil if it would.
	Refused *Refusal `json:"refused,omitempty"`
	// Notes are about the Pod as a whole.
	Notes       []string `json:"notes,omitempty"`
	SidecarSets []Answer `json:"sidecarSets"`

	adds     map[string][]string // the containers that the plan adds, by SidecarSet
	own      []string            // the containers of the Pod as its creator wrote it
	injected *corev1.Pod         // the Pod as the plan makes it; nil if it is refused
	plan     inject.Plan
}

// Refusal is why the Pod is not created, and who says so.
type Refusal struct {
	By      string `json:"by"`
	Message string `json:"message"`
}

// Explainer has what answers depend on. It is not safe for concurrent use.
type Explainer struct {
	World *clusterview.View
	// Revisions are the ControllerRevisions of SidecarSets, all of them or none.
	Revisions []*appsv1.ControllerRevision
	// Exists reports whether a ConfigMap or Secret is in a Namespace; nil without a cluster.
	Exists func(ctx context.Context, ref Reference, namespace string) (bool, error)
}

// subject is one Pod and what is known of it.
type subject struct {
	*Explainer
	decision  clusterview.Decision
	labels    labels.Set
	namespace labels.Set // the labels of the Namespace
	known     bool       // these are all of them
	record    podstate.Hashes
	listed    []string
	adds      map[string][]string // the containers that the plan adds, by SidecarSet
	undecided []*inject.Compiled  // by the labels of the Namespace, which are not known
	why       error               // they are not known
}

func (e *Explainer) look(ctx context.Context, namespace string, pod map[string]any) (*subject, error) {
	object := unstructured.Unstructured{Object: pod}
	undecided, known, why := e.World.Undecided(ctx, namespace, object.GetLabels())
	decision, err := known.Decide(ctx, namespace, pod)
	if err != nil {
		return nil, err
	}
	annotations := object.GetAnnotations()
	s := &subject{
		Explainer: e, decision: decision, undecided: undecided, why: why, adds: map[string][]string{}, labels: object.GetLabels(),
		record: podstate.ParseHashes(annotations[appsv1beta1.AnnotationHash]), listed: podstate.ParseInjectedList(annotations[appsv1beta1.AnnotationInjectedList]),
	}
	s.namespace, err = e.World.NamespaceLabels(ctx, namespace)
	if s.known = err == nil; !s.known { // no decision needed them
		s.namespace = labels.Set{corev1.LabelMetadataName: namespace}
	}
	return s, nil
}

// answers asks for an answer about each SidecarSet that can be used, and sorts them.
func (s *subject) answers(of func(p *inject.Compiled, selected bool) Answer) []Answer {
	var all []Answer
	for name, err := range s.World.Unusable {
		problem := strings.ReplaceAll(err.Error(), fmt.Sprintf("compiling SidecarSet %q: ", name), "")
		all = append(all, Answer{SidecarSet: name, Decision: Unusable, Reasons: []string{problem}, Remedies: []string{"Correct the SidecarSet. Until then it injects nothing."}})
	}
	for _, p := range s.World.Snapshot.SidecarSets() {
		if s.World.Unusable[p.Name()] != nil {
			continue
		}
		if slices.Contains(s.undecided, p) {
			all = append(all, Answer{
				SidecarSet: p.Name(), Decision: Unknown,
				Reasons: []string{fmt.Sprintf("Its selector selects the Pod. Whether its namespaceSelector selects Namespace %s is not known: %s.", s.decision.Namespace, s.why)},
			})
			continue
		}
		d := Between(p, s.labels, s.namespace, s.known)
		a := of(p, len(d.Mismatches) == 0)
		a.SidecarSet, a.Mismatches, a.met = p.Name(), d.Mismatches, d.met
		a.Near = a.Decision == NotSelected && d.isNear()
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Answer) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(len(a.Mismatches), len(b.Mismatches)), cmp.Compare(b.met, a.met), strings.Compare(a.SidecarSet, b.SidecarSet))
	})
	return all
}

func (a *Answer) rank() int {
	switch {
	case a.Near:
		return 2
	case a.Decision == NotSelected:
		return 3
	case a.Decision == Unusable:
		return 1
	}
	return 0
}

// skipped answers for a SidecarSet that selects the Pod and that the engine leaves out.
func (s *subject) skipped(p *inject.Compiled) (Answer, bool) {
	if s.decision.Excluded {
		return Answer{Decision: NamespaceExcluded, Reasons: []string{fmt.Sprintf("Pods in namespace %s are never injected: the operator excludes it (--excluded-namespaces, and its own).", s.decision.Namespace)}}, true
	}
	i := slices.IndexFunc(s.decision.Plan.Skipped, func(skip inject.Skip) bool { return skip.SidecarSet == p.Name() })
	if i < 0 {
		return Answer{}, false
	}
	switch skip := s.decision.Plan.Skipped[i]; skip.Reason {
	case inject.SkipPaused:
		return Answer{Decision: Paused, Reasons: []string{"spec.injectionStrategy.paused is true."}, Remedies: []string{"Set it to false, if new Pods are to get the sidecars."}}, true
	case inject.SkipCanary:
		return Answer{Decision: ReplacedByCanary, Reasons: []string{fmt.Sprintf("Its canary %s selects the Pod, too, and takes its place.", skip.By)}}, true
	case inject.SkipMirrorPod:
		return Answer{Decision: MirrorPod, Reasons: []string{"The Pod is the API server's copy of a static Pod, which admission cannot change."}}, true
	}
	return Answer{}, false
}

// unauthenticated clients names the containers that say that they were injected, although no record of the
// Pod, and not the plan, says by whom.
func (s *subject) clients() (notes []string) {
	owned := map[string]bool{}
	for set, sidecars := range s.record.Sidecars() {
		for _, name := range sidecars {
			first, second := appsv1beta1.HotUpgradeNames(name)
			owned[name], owned[first], owned[second] = true, true, true
		}
		if p, ok := s.World.Snapshot.Get(set); ok {
			for i := range p.Set.Spec.InitContainers { // the record lacks those that are not native
				owned[p.Set.Spec.InitContainers[i].Name] = true
			}
		}
	}
	for _, edit := range slices.Concat(s.decision.Plan.Replacements, s.decision.Plan.Removals) {
		owned[edit.Name] = true
	}
	for _, c := range slices.Concat(s.decision.Pod.InitContainers, s.decision.Pod.Containers) {
		if c.Injected && !owned[c.Name] {
			notes = append(notes, fmt.Sprintf("Container %q has %s=true, and no record of the Pod says which SidecarSet brought it: it may be faked or copied.", c.Name, appsv1beta1.EnvInjected))
		}
	}
	return notes
}

// inForce says why new Pods may not get a SidecarSet, by its condition Ready; "" if nothing says so.
func inForce(set *appsv1beta1.SidecarSet) string {
	ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	switch {
	case set.UID == "": // of a file
		return ""
	case set.Status.ObservedGeneration == 0:
		return "The operator has written no status yet: it has not seen the SidecarSet, or does not run."
	case ready == nil:
		return ""
	case ready.Status != metav1.ConditionTrue && ready.Reason != appsv1beta1.ReasonRevisionNotStable: // with that, Pods are injected
		return fmt.Sprintf("The SidecarSet is not Ready (%s, %s): %s", ready.Status, ready.Reason, ready.Message)
	case ready.ObservedGeneration < set.Generation:
		return fmt.Sprintf("It is not known yet whether new Pods get generation %d.", set.Generation)
	}
	return ""
}

// sentence makes an error a sentence.
func sentence(text string) string {
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + strings.TrimRight(text[1:], ".") + "."
}
