// Package requester knows which rights the requester of a SidecarSet needs. The
// containers of a SidecarSet run in Pods of other users, so its requester must be
// allowed to run them there: to create Pods in every Namespace that it injects
// into, to use containers that get out of their Pod or read Secrets, and to
// update the SidecarSet that a canary replaces.
//
// The package says which questions to ask, and what the answers mean. It does not know who the
// requester is, or how an API server is asked.
package requester

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// VerbPrivileged is the verb on sidecarsets, cluster-wide, that the requester of a SidecarSet
// needs if Uses finds fields in it.
const VerbPrivileged = "inject-privileged"

// MaxNamespaces is how many namespaces are asked about one by one. If there are more, the
// requester needs the right to create Pods everywhere.
const MaxNamespaces = 50

// Question asks whether the requester may do one thing. An empty Namespace
// means all of them.
type Question struct{ Verb, Group, Resource, Name, Namespace string }

// createPods asks about Pods in a namespace: the requester of a SidecarSet must be allowed to create them
// wherever it injects.
func createPods(namespace string) Question {
	return Question{Verb: "create", Resource: "pods", Namespace: namespace}
}

func updateSidecarSet(name string) Question {
	return Question{Verb: "update", Group: appsv1beta1.Resource.Group, Resource: appsv1beta1.Resource.Resource, Name: name}
}

// Demand has the rights that the requester of one SidecarSet needs. Its methods do not change it.
type Demand struct {
	namespaces []string // where the requester must be allowed to create Pods, unless everywhere
	closed     bool     // the SidecarSet can inject into no other namespace
	why        string   // why only the right everywhere counts; empty if namespaces are known

	privileged Question
	uses       []string

	base string // the SidecarSet that a canary replaces in Pods
}

// Cluster is what a Demand depends on apart from the SidecarSet.
type Cluster struct {
	// Select returns the names of the existing namespaces whose labels the selector selects,
	// in any order.
	Select func(labels.Selector) []string
	// Excluded are the namespaces that are never injected into.
	Excluded []string
}

// NewDemand returns the Demand of a SidecarSet. object is the SidecarSet as v1beta1 JSON, and
// set is the same decoded.
func NewDemand(object map[string]any, set *appsv1beta1.SidecarSet, c Cluster) Demand {
	d := Demand{
		privileged: Question{Verb: VerbPrivileged, Group: appsv1beta1.Resource.Group, Resource: appsv1beta1.Resource.Resource, Name: set.Name},
		uses:       Uses(object),
		base:       appsv1beta1.BaseOfCanary(set.Annotations),
	}
	d.namespaces, d.closed, d.why = scope(set.Spec.NamespaceSelector, c)
	return d
}

// WithRevision returns the Demand of a SidecarSet that also injects a recorded
// revision. The revision is given as the SidecarSet that it restores; it may use
// what the SidecarSet does not use any more.
func (d Demand) WithRevision(name string, restored map[string]any) Demand {
	d.uses = slices.Clone(d.uses)
	for _, path := range Uses(restored) {
		d.uses = append(d.uses, path+" of revision "+name)
	}
	return d
}

// Changed reports whether an update changes what is injected or where, so that its requester
// needs rights. The update of running Pods and the number of revisions do not count. Pausing
// does not count either: it must not take more rights than writing SidecarSets. Resuming
// counts, because the user who resumes may lack the right to inject what was paused.
func Changed(object, old map[string]any) bool {
	return isPaused(old) && !isPaused(object) || !equality.Semantic.DeepEqual(effective(object), effective(old))
}

func isPaused(object map[string]any) bool {
	paused, _ := member(member(object, "spec"), "injectionStrategy")["paused"].(bool)
	return paused
}

// effective is the part of a SidecarSet that decides what is injected and where, except
// whether injection is paused.
func effective(object map[string]any) map[string]any {
	decides := maps.Clone(member(object, "spec"))
	if decides == nil {
		decides = map[string]any{}
	}
	update, version := member(decides, "updateStrategy"), decides["customVersion"]
	stopped, _ := update["paused"].(bool)
	for _, name := range []string{"updateStrategy", "revisionHistoryLimit", "customVersion"} {
		delete(decides, name)
	}
	metadata := member(object, "metadata")
	if strategy := maps.Clone(member(decides, "injectionStrategy")); strategy != nil {
		delete(strategy, "paused")
		decides["injectionStrategy"] = strategy
		if len(strategy) == 0 {
			delete(decides, "injectionStrategy")
		}
		if strategy["revision"] != nil {
			// The members that choose between the revisions, and those that name them: a
			// revision inherits the labels of its SidecarSet.
			decides["choice"] = []any{
				update["partition"], update["selector"], stopped,
				version, member(metadata, "labels")[appsv1beta1.LabelCustomVersion],
			}
		}
	}
	annotations := member(metadata, "annotations")
	decides["enforce"] = annotations[appsv1beta1.AnnotationEnforce] == "true"
	if annotations[appsv1beta1.AnnotationCanary] == "true" {
		decides["base"] = annotations[appsv1beta1.AnnotationBase]
	}
	return decides
}

// scope says where a SidecarSet injects: the namespaces if they are known, that
// there are no others (closed), or why they are not known.
func scope(selector *metav1.LabelSelector, c Cluster) (namespaces []string, closed bool, why string) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, false, "spec.namespaceSelector is invalid"
	}
	demands := selectors.DemandsOf(selector)
	named, byName := demands.Named()
	switch {
	case byName:
		namespaces, closed = sets.List(named), true // whatever their labels are: others may change them
	case demands.AsksForLabel():
		namespaces = c.Select(parsed)
	default:
		return nil, false, "spec.namespaceSelector does not say which namespaces"
	}
	namespaces = slices.DeleteFunc(slices.Clone(namespaces), func(name string) bool { return slices.Contains(c.Excluded, name) })
	slices.Sort(namespaces)
	switch namespaces = slices.Compact(namespaces); {
	case len(namespaces) > MaxNamespaces:
		return nil, false, fmt.Sprintf("spec.namespaceSelector selects %d namespaces, and rights are checked in %d at most", len(namespaces), MaxNamespaces)
	case len(namespaces) == 0 && !closed:
		return nil, false, "spec.namespaceSelector selects no namespace yet"
	}
	return namespaces, closed, ""
}

// Next returns the questions whose answers are still needed, given the answers so far; none if
// these are enough for Missing.
func (d Demand) Next(answers map[Question]bool) []Question {
	var next []Question
	ask := func(q Question) (answer, known bool) {
		answer, known = answers[q]
		if !known {
			next = append(next, q)
		}
		return answer, known
	}
	if len(d.uses) > 0 {
		ask(d.privileged)
	}
	if d.base != "" {
		ask(updateSidecarSet(d.base))
	}
	if d.closed && len(d.namespaces) == 0 {
		return next // the SidecarSet injects nowhere
	}
	if everywhere, known := ask(createPods("")); known && !everywhere {
		for _, namespace := range d.namespaces {
			ask(createPods(namespace))
		}
	}
	return next
}

// Missing returns the rights that the requester lacks, each as the end of a sentence that
// begins with the requester, with a remedy; none if no right is missing.
func (d Demand) Missing(answers map[Question]bool) []string {
	var missing []string
	if !answers[createPods("")] {
		uninjected := slices.DeleteFunc(slices.Clone(d.namespaces), func(namespace string) bool { return answers[createPods(namespace)] })
		if len(uninjected) > 0 || d.why != "" {
			missing = append(missing, d.explain(uninjected))
		}
	}
	if len(d.uses) > 0 && !answers[d.privileged] {
		missing = append(missing, fmt.Sprintf("may not use %s: remove it, or have the verb %s on %s granted (ClusterRole sidecarset-privileged-editor)",
			enumerate(d.uses), VerbPrivileged, appsv1beta1.Resource.GroupResource()))
	}
	if d.base != "" && !answers[updateSidecarSet(d.base)] {
		missing = append(missing, fmt.Sprintf("may not update SidecarSet %s, which this canary replaces in Pods: name a base in annotation %s that the user may update, or have the verb update on %s of that name granted",
			d.base, appsv1beta1.AnnotationBase, appsv1beta1.Resource.GroupResource()))
	}
	return missing
}

func (d Demand) explain(uninjected []string) string {
	if d.why != "" {
		return fmt.Sprintf("may not create Pods in all namespaces, and %s: name them there by %s, or have the right to create Pods granted cluster-wide", d.why, corev1.LabelMetadataName)
	}
	return fmt.Sprintf("may not create Pods in %s, where this SidecarSet injects: leave it out in spec.namespaceSelector, or have the right to create Pods granted there", enumerate(uninjected))
}

// enumerate names the first few of a list.
func enumerate(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}
